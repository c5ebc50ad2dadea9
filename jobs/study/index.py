"""The folder of a scaling study: index.json (parameters and states of all points), runs/POINT (a run folder each, with
the launcher's output in output.txt) and failed/POINT.N (what failed attempts left)."""

import fcntl
import json
import os
import subprocess
import tempfile

from study.points import Refusal, make_points, per_node_of

# invalid: it ended well, but `trireme report` rejects its measurements.
STATES = ("waiting", "submitted", "running", "done", "invalid", "failed", "impossible")


def ask(command):
    """Runs a command, out of reach of the terminal's signals; its exit code, output and errors."""
    try:
        found = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               timeout=300, start_new_session=True)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, "", str(error)
    return found.returncode, found.stdout.decode(errors="replace"), found.stderr.decode(errors="replace")


class Index:
    """index.json; written whole after each change."""

    def __init__(self, options, launcher, program):
        self.folder = os.path.abspath(options.output)
        self.path = os.path.join(self.folder, "index.json")
        # What points must share; ranks, layouts and repeats may be added to later.
        self.parameters = {"mode": options.mode, "batch": options.batch, "smallest": options.ranks[0],
                           "steps": options.steps, "threads": options.threads, "gpus": options.gpus,
                           "ranks_per_node": per_node_of(options, launcher) if launcher != "local" else 0,
                           "launcher": launcher, "program": program, "train": options.train}
        self.predictions = {}  # machine and points, see study/prediction.py; {}: none
        self.dataset = []  # flags of all points, see study/dataset.py
        self.shared_cores = ["--shared-cores"] if options.shared_cores else []
        self.benchmark = ["--benchmark", options.benchmark] if options.benchmark else []
        self.points, self.left_out = make_points(options, launcher)
        self.reports = None

    def open(self):
        os.makedirs(os.path.join(self.folder, "runs"), exist_ok=True)
        self.lock = open(os.path.join(self.folder, "lock"), "w")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refusal("%s: another scaling-study is at work there" % self.folder)
        except OSError:
            pass  # a file system without locks
        if os.path.exists(self.path):
            self.go_on()
        self.write()

    def read(self):
        try:
            with open(self.path) as file:
                found = json.load(file)
            parameters = dict(found["parameters"])
            for point in found["points"]:
                if point["state"] not in STATES or (point["state"] == "submitted" and int(point["job"]) < 1):
                    raise ValueError("%s has no state that there is" % point["name"])
                for key, kind in (("name", str), ("layout", str), ("flags", list), ("batch", int), ("ranks", int)):
                    if not isinstance(point[key], kind):
                        raise ValueError("%s of %s" % (key, point["name"]))
            predictions = dict(found.get("predictions", {}))
            for each in predictions.get("points", []):
                str(predictions["machine"]), each["layout"], int(each["ranks"])
                float(each["tokens_per_second"]) if "reason" not in each else str(each["reason"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refusal("%s: is damaged (%s: %s); restore it, or move %s away and begin the study again"
                          % (self.path, type(error).__name__, str(error).replace("\n", " "), self.folder))
        return parameters, found["points"], predictions

    def go_on(self):
        """Takes over the points of a study that was begun."""
        parameters, points, self.predictions = self.read()
        for key, value in self.parameters.items():
            if parameters.get(key) != value:
                raise Refusal("%s: its study has %s = %s, this one %s; give another --output"
                              % (self.folder, key, json.dumps(parameters.get(key)), json.dumps(value)))
        known = {point["name"]: point for point in points}
        begun = {point["layout"] for point in points if point["state"] not in ("waiting", "impossible")}
        for point in self.points:
            old = known.get(point["name"])
            if not old or (old["flags"], old["batch"]) == (point["flags"], point["batch"]):
                continue
            if point["layout"] in begun:
                raise Refusal("%s: layout %s had other flags; give another --output or another name"
                              % (self.folder, point["layout"]))
            old.clear()  # nothing of that layout has run
            old.update(point)
            predicted = self.predictions.get("points", [])
            predicted[:] = [each for each in predicted if each["layout"] != point["layout"]]
        self.points = points + [point for point in self.points if point["name"] not in known]

    def write(self):
        content = {"format": 2, "parameters": self.parameters, "points": self.points}
        if self.predictions:
            content["predictions"] = self.predictions
        text = json.dumps(content, indent=1) + "\n"
        with open(self.path + ".new", "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.path + ".new", self.path)

    def run_folder(self, point):
        return os.path.join(self.folder, "runs", point["name"])

    def set_aside(self, point):
        """Moves what an attempt left out of the way, to failed/."""
        if not os.path.isdir(self.run_folder(point)):
            return
        os.makedirs(os.path.join(self.folder, "failed"), exist_ok=True)
        number = 1
        while os.path.exists(os.path.join(self.folder, "failed", "%s.%d" % (point["name"], number))):
            number += 1
        os.rename(self.run_folder(point), os.path.join(self.folder, "failed", "%s.%d" % (point["name"], number)))

    # --- figures ---

    def has_report(self):
        if self.reports is None:
            code, text, _ = ask([self.parameters["program"], "report", "--help"])
            self.reports = code == 0 and "--json" in text
        return self.reports

    def reported(self, point):
        """What `trireme report` computes of a point: a speed without warm-up, or None and why it has none."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.json")
            for _ in range(3):  # MPI libraries sometimes crash in MPI_Init
                _, _, errors = ask([self.parameters["program"], "report", self.run_folder(point), "--json", path]
                                 + self.shared_cores)
                if os.path.exists(path) or "trireme: error:" in errors:
                    break
            try:
                with open(path) as file:
                    run = json.load(file)["runs"][-1]
                if not run["valid"]:
                    return None, "INVALID: " + "; ".join(run.get("faults", [run.get("incomplete")]))
                return float(run["figures"]["tokens_per_second"]["median"]), None
            except (OSError, ValueError, KeyError, IndexError, TypeError):
                return None, "no report: " + (errors.strip().splitlines() or ["it ended without a message"])[-1]

    def figure_of_merit(self, point):
        """The figure of merit of a point's last attempt, None where it has none. All steps count for it."""
        attempts = os.path.join(self.run_folder(point), "attempts")
        try:
            last = sorted(os.listdir(attempts))[-1]
            with open(os.path.join(attempts, last, "summary.json")) as file:
                value = json.load(file)["figure_of_merit"]
        except (OSError, ValueError, KeyError, IndexError):
            return None
        return value if isinstance(value, (int, float)) and value > 0 else None

    def judge(self, point):
        """Gives a point that ended well its figure, or the reason why it has none."""
        for key in ("note", "tokens_per_second", "figure_of_merit", "figure_from"):
            point.pop(key, None)
        if self.has_report():
            speed, fault = self.reported(point)
        else:
            speed, fault = self.figure_of_merit(point), "no figure of merit"
        if speed is None:
            point.update(state="invalid", note=fault)
        else:
            point.update(state="done", tokens_per_second=speed, figure_from="report" if self.has_report() else "FOM")

    def reason(self, point, code):
        """One line with the reason why a point failed."""
        try:
            with open(os.path.join(self.run_folder(point), "output.txt"), errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            lines = []
        errors = [line for line in lines if "error: " in line and line.startswith(("trireme", "jobs"))]
        return errors[0] if errors else "exit code %s" % code

    def finish(self, point, code, seconds=None):
        point["exit_code"] = code
        point.pop("process", None)
        if seconds is not None:
            point["seconds"] = round(seconds, 1)
        if code == 0 and os.path.isdir(os.path.join(self.run_folder(point), "attempts")):
            self.judge(point)
        else:
            point.update(state="failed", note=self.reason(point, code) if code != 0 else "no record of a run")
            self.set_aside(point)
        self.write()
