"""Starting, ending and submitting the points of a scaling study."""

import datetime
import os
import re
import signal
import socket
import subprocess
import time

from study.index import ask
from study.points import Refusal

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # jobs/
MARK = "TRIREME_STUDY_POINT"  # in the environment of all processes of a point that runs here: its run folder


class Stopped(Exception):
    """A signal asked the study to end."""


class Signals:
    """Signals that ask the study to end raise Stopped: the first of them, at once or at the end of a `with` block of
    this. Later ones do nothing, so that what ends a point cannot itself be ended."""

    def __init__(self):
        self.held, self.name, self.raised = False, None, False

    def catch(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as set by nohup
                signal.signal(number, self.receive)

    def receive(self, number, frame):
        self.name = self.name or signal.Signals(number).name
        if not self.held:
            self.stop()

    def stop(self):
        if not self.raised:
            self.raised = True
            raise Stopped(self.name)

    def __enter__(self):
        self.held = True

    def __exit__(self, kind, value, trace):
        self.held = False
        if self.name and kind is None:
            self.stop()


SIGNALS = Signals()


def now():
    return datetime.datetime.utcnow().strftime("%Y-%m-%dT%H:%M:%SZ")


def train_flags(index, point):
    parameters = index.parameters
    return (["train"] + index.dataset + parameters["train"] + ["--train.batch", str(point["batch"]), "--train.steps",
            str(parameters["steps"]), "--train.evaluate_at_end", "false", "--checkpoint.at_end", "false",
            "--checkpoint.every_minutes", "0",
            "--train.output", index.run_folder(point)] + point["flags"])


def environment_of(index, point):
    parameters = index.parameters
    per_node = parameters["ranks_per_node"] or point["ranks"]
    variables = {"TRIREME": parameters["program"], "TRIREME_JOBS": HERE, "TRIREME_RANKS": str(point["ranks"]),
                 "TRIREME_NODES": str(-(-point["ranks"] // per_node)), "TRIREME_THREADS": str(parameters["threads"]),
                 "TRIREME_RANKS_PER_NODE": str(min(per_node, point["ranks"])), "TRIREME_GPUS": str(parameters["gpus"])}
    return variables


def ask_plan(index, point, arguments):
    """`trireme plan` on the flags and the nodes of a point: exit code, output and errors."""
    per_node = index.parameters["ranks_per_node"]
    if not per_node and not point.get("extrapolated"):
        per_node = point["ranks"]  # of this machine; more than are run are placed by the machine file
    nodes = ["--ranks-per-node", str(min(per_node, point["ranks"]))] if per_node else []
    flags = train_flags(index, point)[1:]
    at = flags.index("--train.output")
    return ask([index.parameters["program"], "plan", "--ranks", str(point["ranks"])] + nodes + arguments
               + flags[:at] + flags[at + 2:])


def error_line(errors):
    """The program's own line, None where there is none."""
    return next((line for line in errors.splitlines() if line.startswith("trireme: error: ")), None)


def impossible(index, point):
    """The program's own line where a point cannot run, known before anything is started or submitted."""
    code, _, errors = ask_plan(index, point, [])
    line = error_line(errors)
    # If the program cannot be started outside of an allocation, the points themselves will fail.
    return line if code == 1 and line and "launcher" not in line else None


# --- points that run here ---

def local_command(index, point):
    return ["bash", os.path.join(HERE, "launch.sh")] + train_flags(index, point)


def members(session, folder):
    """The living processes of a session that belong to the point of that run folder: launcher and ranks. Launchers give
    ranks process groups of their own, but leave them in the session."""
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, errors="replace") as file:
                state, _, _, of = file.read().rpartition(")")[2].split()[:4]
            with open("/proc/%s/environ" % name, "rb") as file:
                marked = os.fsencode("%s=%s" % (MARK, folder)) in file.read().split(b"\0")
        except (OSError, ValueError):
            continue  # it ended meanwhile, or is not ours
        if int(of) == session and state != "Z" and marked:
            found.append(int(name))
    return found


def end_session(session, folder):
    """Ends a point that runs here. The launcher is asked to; what is left of launcher and ranks is killed."""
    patience = float(os.environ.get("TRIREME_END_SECONDS", "20"))
    try:
        os.killpg(session, signal.SIGTERM)
    except OSError:
        pass
    limit = time.time() + patience
    while members(session, folder) and time.time() < limit:
        time.sleep(0.1)
    limit = time.time() + patience
    while time.time() < limit:
        left = members(session, folder)
        if not left:
            return
        for process in left:
            try:
                os.kill(process, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.1)


def end_leftover(index, point):
    """Ends what a study that was killed has left running."""
    process = point.pop("process", None)
    if not process:
        return
    if process["host"] != socket.gethostname():
        print("%s was running on %s when the study was killed; it is not seen from here whether it still is"
              % (point["name"], process["host"]), flush=True)
    elif members(process["group"], index.run_folder(point)):
        print("%s is still running, left behind by a study that was killed: ended" % point["name"], flush=True)
        end_session(process["group"], index.run_folder(point))


def run_here(index, point, options):
    index.set_aside(point)
    os.makedirs(index.run_folder(point))
    environment = dict(os.environ, TRIREME_REQUEUE="0", **environment_of(index, point))
    environment[MARK] = index.run_folder(point)
    begin, child = time.time(), None
    try:
        with SIGNALS, open(os.path.join(index.run_folder(point), "output.txt"), "wb") as output:
            child = subprocess.Popen(local_command(index, point), stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT, env=environment, start_new_session=True)
            point.update(state="running", started=now(), process={"host": socket.gethostname(), "group": child.pid})
            index.write()
        try:
            code = child.wait(options.timeout)
        except subprocess.TimeoutExpired:
            end_session(child.pid, index.run_folder(point))
            code = "none: ended after --timeout %g" % options.timeout
    except Stopped:  # later signals are ignored
        if child:
            end_session(child.pid, index.run_folder(point))
        point["state"] = "waiting"
        point.pop("process", None)
        index.set_aside(point)
        index.write()
        raise
    with SIGNALS:
        index.finish(point, code, time.time() - begin)


# --- points that are jobs of Slurm ---

def batch_command(index, point, options, after):
    variables = environment_of(index, point)
    command = ["sbatch", "--parsable", "--job-name=" + point["name"], "--nodes=" + variables["TRIREME_NODES"],
               "--ntasks-per-node=" + variables["TRIREME_RANKS_PER_NODE"],
               "--cpus-per-task=" + variables["TRIREME_THREADS"],
               "--output=" + os.path.join(index.run_folder(point), "output.txt")]
    if index.parameters["gpus"]:
        command.append("--gpus-per-node=" + variables["TRIREME_GPUS"])
    if after and not options.concurrent:
        command.append("--dependency=afterany:" + str(after))
    command += options.submit_option
    # A point is measured in one run: a point that its time limit interrupts has failed.
    return command + [os.path.join(HERE, "slurm.sh")] + train_flags(index, point)[1:]


def submit(index, point, options, after):
    index.set_aside(point)
    os.makedirs(index.run_folder(point))
    environment = dict(os.environ, TRIREME_REQUEUE="0", **environment_of(index, point))
    # Variables that describe an enclosing job or step do not apply to the point. SBATCH_ACCOUNT and the like
    # are the user's, as is SLURM_JWT.
    surrounding = re.compile(r"SLURM_(JOB|STEP|TASK|NNODES|NODELIST|NODEID|NODE_ALIASES|NTASKS|NPROCS|PROCID|LOCALID|GTIDS"
                             r"|CPUS_|CPU_BIND|TRES_|MEM_|GPUS|SUBMIT_|ARRAY_|HET_|LAUNCH_)")
    environment = {key: value for key, value in environment.items() if not surrounding.match(key)}
    with SIGNALS:  # a submitted job is always recorded
        found = subprocess.run(batch_command(index, point, options, after), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True)
        if found.returncode != 0:
            raise Refusal("sbatch: " + found.stderr.decode(errors="replace").strip().replace("\n", " "))
        point.update(state="submitted", job=int(found.stdout.decode().split(";")[0]), started=now())
        index.write()
    return point["job"]


def job_ended(job):
    """The exit code of a Slurm job, None while it waits or runs. A job that Slurm has forgotten has ended."""
    found, text, errors = ask(["scontrol", "show", "job", "-o", str(job)])
    if found != 0:
        return 0 if "Invalid job id" in errors else None  # the record shows whether it ended well
    state = re.search(r" JobState=(\w+)", text)
    code = re.search(r" ExitCode=(\d+):(\d+)", text)
    if not state or state.group(1) in ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED",
                                       "SIGNALING", "STAGE_OUT", "STOPPED", "RESIZING"):
        return None
    if state.group(1) == "COMPLETED":
        return 0
    return int(code.group(1)) or "none: " + state.group(1) if code else "none: " + state.group(1)
