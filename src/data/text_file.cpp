#include "text_file.hpp"

#include <vector>

#include <zlib.h>
#include <zstd.h>

#include "trireme/core/error.hpp"
#include "trireme/core/files.hpp"

namespace trireme::data {
namespace {

class Plain final : public TextFile {
 public:
  Plain(const std::filesystem::path& path, std::int64_t begin) : file_(path), begin_(begin) {}
  std::size_t read(char* text, std::size_t bytes) override {
    const std::size_t got = file_.read_at(text, bytes, begin_ + read_);
    read_ += static_cast<std::int64_t>(got);
    return got;
  }
  std::int64_t bytes_read() const override { return read_; }

 private:
  InputFile file_;
  std::int64_t begin_, read_ = 0;
};

/// Fills whole reads from a decoder of streams: several members or frames follow each other.
class Compressed : public TextFile {
 public:
  std::size_t read(char* text, std::size_t bytes) final {
    std::size_t done = 0;
    while (done < bytes) {
      if (at_ == end_) {
        end_ = file_.read(buffer_.data(), buffer_.size());
        at_ = 0;
        read_ += static_cast<std::int64_t>(end_);
      }
      // Without input there may still be text in the decoder.
      const std::size_t before = at_, made = decode(text + done, bytes - done);
      done += made;
      if (end_ == 0 && made == 0) {
        if (!whole()) fail("is cut short");
        break;
      }
      if (made == 0 && at_ == before && at_ < end_) fail("is damaged");
    }
    return done;
  }
  std::int64_t bytes_read() const final { return read_; }

 protected:
  Compressed(const std::filesystem::path& path, const char* format)
      : file_(path), format_(format), buffer_(std::size_t{1} << 17) {}
  /// Decodes input() into `text`, advances by what it took, and returns the bytes of text.
  virtual std::size_t decode(char* text, std::size_t bytes) = 0;
  /// Whether the file may end here.
  virtual bool whole() const = 0;

  const char* input() const { return buffer_.data() + at_; }
  std::size_t left() const { return end_ - at_; }
  void take(std::size_t bytes) { at_ += bytes; }
  [[noreturn]] void fail(const char* what) const {
    throw Error(
        "{}: {} as {}, near byte {}; restore the file, or rename one that is not compressed",
        file_.path().string(), what, format_, read_ - static_cast<std::int64_t>(left()));
  }

 private:
  InputFile file_;
  const char* format_;
  std::vector<char> buffer_;
  std::size_t at_ = 0, end_ = 0;  // what is left of the buffer
  std::int64_t read_ = 0;
};

class Gzip final : public Compressed {
 public:
  explicit Gzip(const std::filesystem::path& path) : Compressed(path, "gzip") {
    constexpr int gzip_alone = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, gzip_alone) != Z_OK) throw Error("memory: zlib has too little");
  }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() override { inflateEnd(&stream_); }

 private:
  std::size_t decode(char* text, std::size_t bytes) override {
    if (left() == 0 && ended_) return 0;
    if (ended_) inflateReset(&stream_);
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(input()));  // NOLINT: only read
    stream_.avail_in = static_cast<uInt>(left());
    stream_.next_out = reinterpret_cast<Bytef*>(text);
    stream_.avail_out = static_cast<uInt>(bytes);
    const int result = inflate(&stream_, Z_NO_FLUSH);
    take(left() - stream_.avail_in);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) fail("is damaged");
    ended_ = result == Z_STREAM_END;
    return bytes - stream_.avail_out;
  }
  bool whole() const override { return ended_; }

  z_stream stream_ = {};
  bool ended_ = false;  // a member, and no other has begun
};

class Zstandard final : public Compressed {
 public:
  explicit Zstandard(const std::filesystem::path& path)
      : Compressed(path, "Zstandard"), stream_(ZSTD_createDStream(), ZSTD_freeDStream) {
    if (stream_ == nullptr) throw Error("memory: libzstd has too little");
    // As `zstd --long=31` writes; the default refuses windows above 128 MiB.
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, 31);
  }

 private:
  std::size_t decode(char* text, std::size_t bytes) override {
    if (left() == 0 && ended_) return 0;
    ZSTD_inBuffer in{input(), left(), 0};
    ZSTD_outBuffer out{text, bytes, 0};
    const std::size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
    take(in.pos);
    if (ZSTD_isError(result) != 0) fail("is damaged");
    ended_ = result == 0;
    return out.pos;
  }
  bool whole() const override { return ended_; }

  std::unique_ptr<ZSTD_DStream, std::size_t (*)(ZSTD_DStream*)> stream_;
  bool ended_ = false;  // a frame, and no other has begun
};

}  // namespace

bool is_compressed(const std::filesystem::path& path) {
  return path.extension() == ".gz" || path.extension() == ".zst";
}

std::unique_ptr<TextFile> open_text(const std::filesystem::path& path, std::int64_t begin) {
  TRIREME_ASSERT(begin == 0 || !is_compressed(path), "byte {} of compressed text", begin);
  if (path.extension() == ".gz") return std::make_unique<Gzip>(path);
  if (path.extension() == ".zst") return std::make_unique<Zstandard>(path);
  return std::make_unique<Plain>(path, begin);
}

}  // namespace trireme::data
