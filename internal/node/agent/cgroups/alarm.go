package cgroups

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// stall is the PSI trigger: tasks have waited for memory for 70 ms within half a second.
const stall = "some 70000 500000"

// rearm is how often thresholds of version 1 are set anew, since the pages that can be dropped,
// which do not count as used, come and go.
const rearm = 10 * time.Second

// Alarm tells when the kernel says that memory has become short, so that nothing waits for the next
// look. Which of its notifications there are depends on the kernel and on the version of cgroups:
// PSI and memory.events, or thresholds of version 1. A kernel without any raises no alarm.
type Alarm struct {
	tree *Tree
	ctx  context.Context
	c    chan struct{}

	mu sync.Mutex
	// set are the thresholds of version 1. One that was crossed is spent.
	set   []*os.File
	setAt time.Time
}

// Alarm listens until ctx ends.
func (t *Tree) Alarm(ctx context.Context) *Alarm {
	a := &Alarm{tree: t, ctx: ctx, c: make(chan struct{}, 1)}
	unified, ok := t.files.(v2)
	// PSI of the group that stands for the machine, or of the machine.
	if !ok || a.listen(filepath.Join(unified.mount, t.path(t.root), "memory.pressure"), stall) != nil {
		_ = a.listen(filepath.Join(t.Proc, "pressure", "memory"), stall)
	}
	if ok {
		for _, group := range []name{t.root, t.kubepods} {
			if len(group) > 0 { // the topmost has no such file
				_ = a.listen(filepath.Join(unified.mount, t.path(group), "memory.events"), "")
			}
		}
	}
	context.AfterFunc(ctx, a.disarm)
	return a
}

// C has a value when memory may be short. One that was not taken yet stands for those that follow.
func (a *Alarm) C() <-chan struct{} { return a.c }

func (a *Alarm) raise() {
	select {
	case a.c <- struct{}{}:
	default:
	}
}

// listen to a file of the kernel's that has changes to tell of, after having written what these
// are.
func (a *Alarm) listen(path, trigger string) error {
	mode := unix.O_RDONLY
	if trigger != "" {
		mode = unix.O_RDWR
	}
	fd, err := unix.Open(path, mode|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if trigger != "" {
		if _, err := unix.Write(fd, append([]byte(trigger), 0)); err != nil {
			unix.Close(fd)
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	// The runtime's poller knows nothing of EPOLLPRI; it can wait for an epoll that does.
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLPRI})
	}
	if err == nil {
		err = unix.SetNonblock(epoll, true)
	}
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("%s: %w", path, err)
	}
	waiting := os.NewFile(uintptr(epoll), path)
	context.AfterFunc(a.ctx, func() { waiting.Close() })
	go a.wait(waiting, fd)
	return nil
}

// wait for the file's changes until its epoll is closed.
func (a *Alarm) wait(waiting *os.File, fd int) {
	defer unix.Close(fd)
	raw, err := waiting.SyscallConn()
	for err == nil {
		err = raw.Read(func(epoll uintptr) bool {
			n, _ := unix.EpollWait(int(epoll), make([]unix.EpollEvent, 1), 0)
			return n > 0
		})
		if err == nil {
			_, _ = unix.Pread(fd, make([]byte, 512), 0) // or the next change is not told
			a.raise()
		}
	}
}

// Arm has the alarm raised when the machine's memory, or that of all pods, is used by so much more
// than now. Version 1 only: in version 2 no number can be given. It may be called at every look.
func (a *Alarm) Arm(machine, pods int64) {
	memory, ok := a.tree.files.(hierarchies)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.setAt) < rearm || a.ctx.Err() != nil {
		return
	}
	a.setAt = time.Now()
	a.close()
	for group, margin := range map[string]int64{a.tree.path(a.tree.root): machine, a.tree.path(a.tree.kubepods): pods} {
		folder, found := memory.in("memory", group)
		if !found || margin <= 0 {
			continue
		}
		if file, err := threshold(folder, margin); err == nil {
			a.set = append(a.set, file)
			go a.crossed(file)
		}
	}
}

func (a *Alarm) disarm() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.close()
}

// close the thresholds; a.mu is held.
func (a *Alarm) close() {
	for _, file := range a.set {
		file.Close()
	}
	a.set = nil
}

// crossed waits until a threshold is, once: memory that goes up and down about it raises no storm.
func (a *Alarm) crossed(file *os.File) {
	if _, err := file.Read(make([]byte, 8)); err == nil {
		a.raise()
	}
}

// threshold of a group's memory, as an eventfd that counts how often it was crossed.
func threshold(folder string, margin int64) (*os.File, error) {
	used, err := readNumber(folder, "memory.usage_in_bytes")
	if err != nil {
		return nil, err
	}
	usage, err := os.Open(filepath.Join(folder, "memory.usage_in_bytes"))
	if err != nil {
		return nil, err
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "memory threshold")
	if err := write(folder, "cgroup.event_control", fmt.Sprintf("%d %d %d", fd, usage.Fd(), used+margin)); err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}
