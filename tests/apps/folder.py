"""Folders of a test runner, each with a lock that its owner holds while it lives.

A runner that is killed leaves its folders behind: the next one of the same kind finds that nobody holds the lock, and
removes them. A folder without a lock is nobody's, or older than this rule, and stays."""

import contextlib
import fcntl
import os
import shutil
import tempfile

# In the folder itself; the kernel lets go of it when the last process of its owner ends.
OWNER = ".owner"
_held = []


def own(folder):
    """The calling process owns the folder until it ends."""
    path = os.path.join(folder, OWNER)
    # Nobody sees the lock before it is held.
    file = open(path + ".new", "w", encoding="ascii")
    fcntl.flock(file, fcntl.LOCK_EX)
    os.rename(path + ".new", path)
    _held.append(file)


def work_folder(kind, remove=shutil.rmtree):
    """A folder `knet-KIND-...` for temporary files, after `remove` has removed what dead owners of that kind have left."""
    prefix = f"knet-{kind}-"
    sweep(tempfile.gettempdir(), prefix, remove)
    folder = tempfile.mkdtemp(prefix=prefix)
    own(folder)
    return folder


def sweep(base, prefix, remove):
    """Calls `remove` with each of this user's folders in `base` whose owner is dead."""
    try:
        names = sorted(name for name in os.listdir(base) if name.startswith(prefix))
    except FileNotFoundError:
        return
    for name in names:
        path = os.path.join(base, name)
        # Somebody else may remove it at the same moment.
        with contextlib.suppress(OSError), dead(path) as is_dead:
            if is_dead:
                remove(path)


@contextlib.contextmanager
def dead(path):
    """Whether the folder is this user's and its owner is dead. Inside, nobody else can think so too."""
    # The folder itself may have been given to another user; who may write into it cannot make a file of ours.
    lock = os.open(os.path.join(path, OWNER), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if os.path.islink(path) or os.fstat(lock).st_uid != os.getuid() or mounted_below(path):
            yield False
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)


def mounted_below(path):
    """Whether something is mounted there, as this process sees it: to remove it would remove what is mounted."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split()[4] for line in file]
    return any(point == path or point.startswith(path + "/") for point in points)
