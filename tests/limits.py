#!/usr/bin/env python3
"""Runs a command within limits that hold on a busy machine as on an idle one.

A limit is of processor time, of the command and all that it starts. A command that waits for something that never comes uses none:
that is what a limit of WALL times as many seconds is for. Where there is no /proc, only the second holds.

    limits.py       tests this itself; last line: N passed, N failed
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

WALL = 10
PROCESSORS = os.cpu_count() or 1
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100


def processes():
    """{process: (its parent, ticks that it and its children that have ended took)}"""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as f:
                words = f.read().rpartition(")")[2].split() # a name may have spaces and brackets in it
            found[int(name)] = (int(words[1]), sum(map(int, words[11:15])))
        except (OSError, IndexError, ValueError): # it has just ended
            pass
    return found


def family(root, found):
    """The process and all that descend from it."""
    children = {}
    for process, (parent, _) in found.items():
        children.setdefault(parent, []).append(process)
    members, rest = [], [root]
    while rest:
        members.append(rest.pop())
        rest += children.get(members[-1], [])
    return members


def processor_time(root):
    found = processes()
    return sum(found[process][1] for process in family(root, found) if process in found) / TICKS


def kill_family(root):
    for process in family(root, processes()):
        try:
            os.kill(process, signal.SIGKILL)
        except OSError: # it has just ended
            pass


def run(command, limit, output, wall=None, **options):
    """(exit code or None where a limit ended it, seconds of processor time, why it was ended or ""). output: a file; options: Popen's."""
    wall = wall or WALL * limit
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options)
    start, pause, asked, why = time.monotonic(), 0.01, 0.0, ""
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG) # subprocess would not say what it took
        if done:
            break
        elapsed = time.monotonic() - start
        if elapsed > wall:
            why = f"still running after {elapsed:.0f} s"
        elif elapsed * PROCESSORS > limit and elapsed - asked > min(1.0, limit / 10): # it cannot have used as much before
            asked = elapsed
            used = processor_time(process.pid)
            why = f"still running after {used:.0f} s of processor time" if used > limit else ""
        if why:
            kill_family(process.pid)
            _, status, usage = os.wait4(process.pid, 0)
            break
        time.sleep(pause)
        pause = min(0.25, pause * 1.5)
    process.returncode = os.waitstatus_to_exitcode(status)
    return None if why else process.returncode, usage.ru_utime + usage.ru_stime, why


# ---- its own test ----
SPIN = "import time\nwhile time.process_time() < {0}: pass\n"


def check(name, is_right, text):
    print(f"{'ok' if is_right else 'FAILED':6}  {name}" + ("" if is_right else f": {text}"), flush=True)
    return is_right


def checked(name, code, limit, wanted, wall=None):
    with tempfile.TemporaryFile() as output:
        start = time.monotonic()
        got = run([sys.executable, "-c", code], limit, output, wall)
        return check(name, wanted(*got), f"{got} after {time.monotonic() - start:.1f} s")


def main():
    in_child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN.format(60)!r}], start_new_session=True)\n"
    in_past = f"import subprocess, sys\nfor i in range(60): subprocess.run([sys.executable, '-c', {SPIN.format(0.5)!r}])\n"
    results = [
        checked("a command that waits longer than its limit of processor time is not ended", "import time; time.sleep(3)", 1,
                lambda code, used, why: code == 0 and used < 1),
        checked("one that takes longer is", SPIN.format(60), 1,
                lambda code, used, why: code is None and 1 <= used < 60 and "processor time" in why, 600),
        checked("so is one whose child, in another session, does", in_child, 1,
                lambda code, used, why: code is None and "processor time" in why, 600),
        checked("or whose many children did", in_past, 2,
                lambda code, used, why: code is None and used >= 1 and "processor time" in why, 600),
        checked("one that waits for ever is ended as well", "import time; time.sleep(600)", 60,
                lambda code, used, why: code is None and used < 1 and "after 3 s" in why, 3),
        checked("exit codes and signals are told", "import os; os.kill(os.getpid(), 11)", 60,
                lambda code, used, why: code == -signal.SIGSEGV and not why),
        check("by default the second limit is ten times the first", WALL == 10, WALL),
    ]
    found = processes()
    left = [p for p in family(os.getpid(), found) if p != os.getpid()]
    results.append(check("nothing is left of what was ended", not left, left))
    print(f"{results.count(True)} passed, {results.count(False)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
