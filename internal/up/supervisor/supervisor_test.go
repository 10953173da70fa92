// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain starts the spawner's goroutine, which holds its thread for as long as the process lives.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/berth-k8s/berth/internal/up/supervisor.init.func1.1"))
}

// diary records a supervisor's reports in order.
type diary struct {
	mu    sync.Mutex
	lines []string
	more  chan string
}

func supervise(t *testing.T) (*Supervisor, *diary) {
	d := &diary{more: make(chan string, 100)}
	note := func(part, what string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.lines = append(d.lines, part+": "+what)
		d.more <- part + ": " + what
	}
	return &Supervisor{Dir: t.TempDir(), Progress: note, Trouble: note, StopWithin: time.Second}, d
}

func (d *diary) await(t *testing.T, text string) string {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case line := <-d.more:
			if strings.Contains(line, text) {
				return line
			}
		case <-timeout:
			t.Fatalf("nobody said %q; said was %q", text, d.lines)
		}
	}
}

func script(name, text string) Part {
	return Part{Name: name, Argv: func() []string { return []string{"sh", "-c", text} }}
}

// runUntilUp runs the parts until all are ready; the returned function acts like Ctrl-C and returns
// Run's error.
func runUntilUp(t *testing.T, s *Supervisor, parts ...Part) func() error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	up, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, parts, func() { close(up) }) }()
	select {
	case <-up:
	case err := <-ended:
		t.Fatalf("ended before it was up: %v", err)
	}
	var once sync.Once
	var err error
	stop := func() error {
		once.Do(func() { cancel(); err = <-ended })
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return stop
}

func TestPartsStartInOrderAndStopInReverse(t *testing.T) {
	s, _ := supervise(t)
	log := filepath.Join(s.Dir, "order")
	part := func(name string) Part {
		return script(name, fmt.Sprintf(`echo start %[1]s >>%[2]s; trap 'echo stop %[1]s >>%[2]s; exit 0' TERM; sleep 0.1; echo ready; while :; do sleep 0.05; done`, name, log))
	}
	stop := runUntilUp(t, s, part("a"), part("b"))
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got, _ := os.ReadFile(log)
	if want := "start a\nstart b\nstop b\nstop a\n"; string(got) != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestAPartThatIsNeverReadySaysWhyAndTheOthersStop(t *testing.T) {
	s, _ := supervise(t)
	pidFile := filepath.Join(s.Dir, "pid")
	err := s.Run(context.Background(), []Part{
		script("good", "echo $$ >"+pidFile+"; echo ready; exec sleep 1000"),
		script("bad", "echo something >&2; echo port 80 is taken >&2; exit 1"),
	}, func() { t.Error("it is not up") })
	if err == nil || err.Error() != "port 80 is taken" {
		t.Errorf("error %v, want the part's last line", err)
	}
	text, _ := os.ReadFile(pidFile)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("the part before it still runs: %v", err)
	}
}

func TestAPartThatEndsWithoutAWordIsDescribed(t *testing.T) {
	s, _ := supervise(t)
	err := s.Run(context.Background(), []Part{script("mute", "exit 3")}, func() {})
	if err == nil || !strings.Contains(err.Error(), "mute ended with exit status 3") {
		t.Errorf("error %v", err)
	}
}

func TestAPartThatDiedIsStartedAgainWithTheReason(t *testing.T) {
	s, d := supervise(t)
	pidFile := filepath.Join(s.Dir, "pid")
	runUntilUp(t, s, script("part", "echo $$ >"+pidFile+"; echo out of cheese >&2; echo ready; exec sleep 1000"))
	text, _ := os.ReadFile(pidFile)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	line := d.await(t, "starting it again")
	if !strings.Contains(line, "signal: killed") || !strings.Contains(line, "out of cheese") {
		t.Errorf("said was %q, want signal and last words", line)
	}
	d.await(t, "part: running again")
	until(t, "both runs are in the log", func() bool {
		log, _ := os.ReadFile(filepath.Join(s.Dir, "part.log"))
		return strings.Count(string(log), "out of cheese") == 2
	})
}

func TestChildrenOfChildrenAreStoppedToo(t *testing.T) {
	s, _ := supervise(t)
	pidFile := filepath.Join(s.Dir, "pid")
	// The part ignores SIGTERM and leaves a child that holds its output open.
	stop := runUntilUp(t, s, script("stubborn", "trap '' TERM; sleep 1000 & echo $! >"+pidFile+"; echo ready; wait; sleep 1000"))
	began := time.Now()
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopping took %s", took)
	}
	text, _ := os.ReadFile(pidFile)
	pid, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	until(t, "the child's child has ended", func() bool { return !alive(pid) })
}

func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("in 10 s it did not come true that %s", what)
		}
	}
}

// alive returns false for a process that has ended or is a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func TestCtrlCWhileStartingStopsWhatHasStarted(t *testing.T) {
	s, d := supervise(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, []Part{script("slow", "echo working on it; exec sleep 1000")}, func() { t.Error("it is not up") })
	}()
	d.await(t, "working on it")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("error %v", err)
	}
}

func TestLargeLogsArePutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "part.log")
	if err := os.WriteFile(path, make([]byte, maxLog+1), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, _ := f.Stat(); info.Size() != 0 {
		t.Errorf("the new log has %d bytes", info.Size())
	}
	if _, err := os.Stat(path + ".old"); err != nil {
		t.Error(err)
	}
}

// TestAFullDiskEndsNobodyThroughItsLog verifies that log output is lost on a full disk while the
// process writing it keeps running.
func TestAFullDiskEndsNobodyThroughItsLog(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full to stand for a full disk")
	}
	s, d := supervise(t)
	if err := os.Symlink("/dev/full", filepath.Join(s.Dir, "talker.log")); err != nil {
		t.Fatal(err)
	}
	stop := runUntilUp(t, s, script("talker", `i=0; while [ $i -lt 300 ]; do echo "line $i" >&2; i=$((i+1)); done; echo ready; exec sleep 100`))
	d.await(t, "its log cannot be written")
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestAPartThatCannotBeStartedLeavesNothingOpen verifies that each of the repeated starts closes
// its log.
func TestAPartThatCannotBeStartedLeavesNothingOpen(t *testing.T) {
	s, _ := supervise(t)
	open := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip("needs /proc: ", err)
		}
		return len(list)
	}
	before := 0
	for n := range 12 {
		if n == 2 {
			before = open()
		}
		if err := s.Run(context.Background(), []Part{{Name: "missing", Argv: func() []string { return []string{filepath.Join(s.Dir, "missing")} }}}, func() {}); err == nil {
			t.Fatal("it was started")
		}
	}
	if after := open(); after > before+3 {
		t.Errorf("%d files are open, %d before", after, before)
	}
}

// TestAPartIsPreparedAndAwaited verifies that a part with Await is ready when Await returns,
// whatever it prints, and that it is prepared at each start.
func TestAPartIsPreparedAndAwaited(t *testing.T) {
	s, d := supervise(t)
	prepared := make(chan struct{}, 10)
	usable := make(chan struct{})
	part := script("quiet", "echo ready; read -r line < "+s.Dir+"/die")
	if err := syscall.Mkfifo(filepath.Join(s.Dir, "die"), 0o600); err != nil {
		t.Fatal(err)
	}
	part.Prepare = func() error { prepared <- struct{}{}; return nil }
	part.Await = func(ctx context.Context) error {
		select {
		case <-usable:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	up, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, []Part{part}, func() { close(up) }) }()
	<-prepared
	select {
	case <-up:
		t.Error("ready by what it prints, though it is awaited otherwise")
	default:
	}
	close(usable)
	<-up
	if err := os.WriteFile(filepath.Join(s.Dir, "die"), []byte("now\n"), 0); err != nil {
		t.Fatal(err)
	}
	d.await(t, "running again")
	<-prepared
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestAPartThatCannotBePrepared verifies that a failed preparation prevents the start.
func TestAPartThatCannotBePrepared(t *testing.T) {
	s, _ := supervise(t)
	part := script("odd", "echo ready; exec sleep 1000")
	part.Prepare = func() error { return errors.New("no token") }
	if err := s.Run(t.Context(), []Part{part}, func() { t.Error("started") }); err == nil || err.Error() != "odd: no token" {
		t.Errorf("ended with %v", err)
	}
}
