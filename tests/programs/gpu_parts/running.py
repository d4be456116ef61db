"""Processes with a time limit and a log each."""

import os
import signal
import subprocess
import tarfile
import time


class Runner:
    """Runs commands until `end`, each with a log in the folder `logs`."""

    def __init__(self, logs, end, environment):
        self.logs, self.end, self.environment = logs, end, environment
        self.running, self.stopping = set(), False
        os.makedirs(logs, exist_ok=True)
        for name in os.listdir(logs):  # logs of an earlier check
            os.remove(os.path.join(logs, name))

    def left(self):
        return self.end - time.monotonic()

    def run(self, name, command, limit, cwd, **settings):
        """Runs a command; returns its exit status (None if it was killed), the seconds and the
        log. At the time limit, the whole process group is killed."""
        limit, begin = min(limit, self.left()), time.monotonic()
        path = os.path.join(self.logs, name + ".log")
        with open(path, "w") as log:
            if limit < 1:
                log.write("there was no time left for it\n")
                code = None
            else:
                code = self.ended(command, limit, log, cwd, dict(self.environment, **settings))
        with open(path, errors="replace") as log:
            return code, time.monotonic() - begin, log.read()

    def ended(self, command, limit, log, cwd, environment):
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            log.write(f"{error}\n")
            return 127
        self.running.add(process.pid)
        try:
            return process.wait(0 if self.stopping else limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        finally:
            self.running.discard(process.pid)

    def stop(self):
        """Kills all running commands and all that start later."""
        self.stopping = True
        for pid in list(self.running):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended in the meantime

    def pack(self, path):
        """Writes all logs so far to one archive."""
        with tarfile.open(path + ".new", "w:xz") as archive:
            for name in sorted(os.listdir(self.logs)):
                archive.add(os.path.join(self.logs, name), arcname=name)
        os.replace(path + ".new", path)
