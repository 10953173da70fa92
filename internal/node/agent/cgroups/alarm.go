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

// rearm is how often thresholds of version 1 are set again: the amount of pages that can be
// dropped, which do not count as used, changes.
const rearm = 10 * time.Second

// Alarm reports when the kernel says that memory has become short, without waiting for the next
// poll. Which notifications exist depends on the kernel and on the version of cgroups: PSI and
// memory.events, or thresholds of version 1. On a kernel without any, there is no alarm.
type Alarm struct {
	tree *Tree
	ctx  context.Context
	c    chan struct{}

	mu sync.Mutex
	// set are the thresholds of version 1. Each can fire once.
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

// C receives a value when memory may be short. A value that has not been received yet stands for
// later ones, too.
func (a *Alarm) C() <-chan struct{} { return a.c }

func (a *Alarm) raise() {
	select {
	case a.c <- struct{}{}:
	default:
	}
}

// listen watches a kernel file that notifies of changes. It first writes which ones.
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

// wait waits for changes of the file until its epoll is closed.
func (a *Alarm) wait(waiting *os.File, fd int) {
	defer unix.Close(fd)
	raw, err := waiting.SyscallConn()
	for err == nil {
		err = raw.Read(func(epoll uintptr) bool {
			n, _ := unix.EpollWait(int(epoll), make([]unix.EpollEvent, 1), 0)
			return n > 0
		})
		if err == nil {
			_, _ = unix.Pread(fd, make([]byte, 512), 0) // otherwise the next change is not reported
			a.raise()
		}
	}
}

// Arm raises the alarm when the machine's memory usage, or that of all pods, grows by this much.
// Version 1 only: version 2 has no such threshold. It may be called at every poll.
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

// close closes the thresholds; a.mu is held.
func (a *Alarm) close() {
	for _, file := range a.set {
		file.Close()
	}
	a.set = nil
}

// crossed waits until a threshold is crossed, once: memory that fluctuates around it must not cause
// a storm.
func (a *Alarm) crossed(file *os.File) {
	if _, err := file.Read(make([]byte, 8)); err == nil {
		a.raise()
	}
}

// threshold sets one for a group's memory, and returns the eventfd that counts how often it is
// crossed.
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
