# A recipe for Spack: copy this folder to packages/trireme of a Spack repository of yours
# (`spack repo create`), then `spack install trireme`. Not yet tried with Spack itself.
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Trireme(CMakePackage, CudaPackage):
    """Transformer training under MPI: GPT-2 and Llama models with data, tensor, sequence and
    pipeline parallelism and sharded state, whose results do not depend on the layout."""

    # There is no archive yet: the sources come from a working tree,
    # `spack install trireme@main dev_path=/path/to/trireme` or `spack develop`.
    homepage = "file:README.md"
    has_code = True

    license("Apache-2.0")

    version("main")
    version("0.1.0")

    variant("tests", default=False, description="Build the tests and benchmarks")
    variant("plots", default=True, description="gnuplot, for the plots of trireme report --html")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10:~mpi")
    depends_on("onednn@2.6:")
    depends_on("cli11@2.1:")
    depends_on("tomlplusplus@3:")
    depends_on("fmt@9:")
    depends_on("nlohmann-json")
    depends_on("sentencepiece")
    depends_on("pcre2")
    depends_on("highway@1:")
    depends_on("xxhash@0.8:")
    depends_on("zlib-api")
    depends_on("zstd")
    depends_on("python@3.6:", type="run")  # jobs/scaling-study
    depends_on("gnuplot", type="run", when="+plots")
    depends_on("googletest+gmock", when="+tests")
    depends_on("benchmark", when="+tests")
    with when("+cuda"):
        depends_on("cuda@12:")
        depends_on("cudnn")
        depends_on("nccl")
        # cudnn-frontend is no package of Spack's: without it attention runs on Trireme's own kernels.

    generator("ninja")
    conflicts("%gcc@:11", msg="C++20 as GCC 12 has it")
    conflicts("cuda_arch=none", when="+cuda", msg="name the GPUs: cuda_arch=80,90")

    def cmake_args(self):
        args = [
            self.define_from_variant("TRIREME_TESTS", "tests"),
            self.define_from_variant("TRIREME_BENCH", "tests"),
            self.define("TRIREME_WERROR", False),
            self.define("TRIREME_CUDA", "ON" if self.spec.satisfies("+cuda") else "OFF"),
            self.define("DNNL_ROOT", self.spec["onednn"].prefix),
        ]
        if self.spec.satisfies("+cuda"):
            args += [
                self.define("CMAKE_CUDA_ARCHITECTURES", self.spec.variants["cuda_arch"].value),
                self.define("CUDNN_ROOT", self.spec["cudnn"].prefix),
                self.define("NCCL_ROOT", self.spec["nccl"].prefix),
            ]
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_version(self):
        Executable(self.prefix.bin.trireme)("--version")
