package controlplane

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/controlplane/internal/etcdlog"
)

// logLimit is where the log is rotated while it runs: with the one before it, what a glance at
// trouble needs.
const logLimit = 64 << 20

// logFile is the log of this run; the one before it is kept as <name>.1. It is written by several
// goroutines. Its owner only may read it.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File
	size int64
}

// openLog begins a new log; the one of the last run becomes the one before it.
func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	if err := l.rotateFile(); err != nil {
		return nil, fmt.Errorf("log %s: %w: make it writable or name another --data-dir", path, stripPath(err))
	}
	return l, nil
}

// rotateFile keeps the log as <name>.1, in place of what was there, and begins another. The caller
// holds the mutex, unless nobody else has the log yet. At most two files exist.
func (l *logFile) rotateFile() error {
	if l.file != nil {
		l.file.Close()
	}
	if err := os.Rename(l.path, l.path+".1"); err != nil && !os.IsNotExist(err) {
		return err
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	l.file, l.size = file, 0
	return nil
}

// Write writes a line, and rotates the log before it if it is too long. So lines are never cut.
func (l *logFile) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > logLimit {
		if err := l.rotateFile(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	return n, err
}

// Close closes the file. A later Write fails.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// processLog is where klog and etcd's client, which are one for the process, write: to the control
// plane that was started last of those that still run. Without any, klog is as it was before.
// Several control planes of a test process thus write into one log at a time.
type processLog struct {
	mu      sync.Mutex
	targets []*logTarget
	restore func()
}

// logTarget is the log of one control plane. Two of them may have the same writer, which need not
// be comparable: the pointer tells them apart.
type logTarget struct{ io.Writer }

var processLogs processLog

// sendLogs makes the process's logs go to w, and returns what undoes that. The verbosity is that of
// the process, and so of the last one that was started.
func sendLogs(w io.Writer, verbosity int) (undo func()) {
	l := &processLogs
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.targets) == 0 {
		// The first one; those after it find klog captured.
		l.restore = l.captureLogs()
	}

	target := &logTarget{w}
	l.targets = append(l.targets, target)
	setKlog("v", strconv.Itoa(verbosity))
	return sync.OnceFunc(func() {
		// What was logged so far still goes to this log.
		klog.Flush()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.targets = slices.DeleteFunc(l.targets, func(other *logTarget) bool { return other == target })
		if len(l.targets) == 0 {
			l.restore()
		}
	})
}

// captureLogs has klog and etcd's client write to l. The caller holds the mutex.
func (l *processLog) captureLogs() (restore func()) {
	klogBefore := klog.CaptureState()
	setKlog("logtostderr", "false")
	setKlog("alsologtostderr", "false")
	// Otherwise klog writes a line of an error once for each severity below it.
	setKlog("one_output", "true")
	// What ends the process must not be found in a file only.
	setKlog("stderrthreshold", "FATAL")
	// To l rather than to the target: that changes when another control plane starts or ends.
	klog.SetOutput(l)
	restoreEtcd := etcdlog.SendTo(l)
	return func() {
		restoreEtcd()
		klogBefore.Restore()
	}
}

// Write never fails: a log that cannot be written is no reason to stop.
func (l *processLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.targets); n > 0 {
		_, _ = l.targets[n-1].Write(line)
	}
	return len(line), nil
}

// setKlog sets one of klog's flags, the only way to some of its settings. It panics for a flag that
// klog does not have.
func setKlog(name, value string) {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	if err := flags.Set(name, value); err != nil {
		panic(err) // the names and values are klog's own
	}
}

// etcdLog writes what etcd warns of into the same log. Each entry is one line, with the time in ISO
// 8601.
func etcdLog(w io.Writer) zapcore.Core {
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime = zapcore.ISO8601TimeEncoder
	return zapcore.NewCore(zapcore.NewConsoleEncoder(encoder), zapcore.Lock(zapcore.AddSync(w)), zapcore.WarnLevel)
}
