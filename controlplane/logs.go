// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// logLimit is the size that triggers rotation of the log; two such files suffice to diagnose a
// problem.
const logLimit = 64 << 20

// logFile is the log of this run; the previous run's log is kept as <name>.1. It is safe for
// concurrent use, and readable by its owner only.
type logFile struct {
	path string

	mu   sync.Mutex
	file *os.File
	size int64
}

// openLog begins a new log; the last run's log becomes the previous one.
func openLog(path string) (*logFile, error) {
	l := &logFile{path: path}
	if err := l.rotateFile(); err != nil {
		return nil, fmt.Errorf("log %s: %w: make it writable or name another --data-dir", path, stripPath(err))
	}
	return l, nil
}

// rotateFile renames the log to <name>.1, replacing an older one, and begins another. The caller
// must hold the mutex, unless the log is not shared yet. At most two files exist.
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

// Write writes a line. It rotates a log that is too long before the line, so lines are never split.
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

// Close closes the file. Later writes fail.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}

// processLog is the process-wide destination of klog and etcd's client: the log of the most
// recently started control plane that is still running. If none is running, klog writes to its
// original destination. Several control planes of a test process thus write to one log at a time.
type processLog struct {
	mu      sync.Mutex
	targets []*logTarget
	restore func()
}

// logTarget is the log of one control plane. Two control planes may share a writer, which need not
// be comparable; the pointer distinguishes them.
type logTarget struct{ io.Writer }

var processLogs processLog

// sendLogs directs the process's logs to w and returns an undo function. The verbosity is
// process-wide, so the last started control plane determines it.
func sendLogs(w io.Writer, verbosity int) (undo func()) {
	l := &processLogs
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.targets) == 0 {
		// Only the first target captures klog.
		l.restore = l.captureLogs()
	}

	target := &logTarget{w}
	l.targets = append(l.targets, target)
	setKlog("v", strconv.Itoa(verbosity))
	return sync.OnceFunc(func() {
		// Flush earlier messages to this log.
		klog.Flush()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.targets = slices.DeleteFunc(l.targets, func(other *logTarget) bool { return other == target })
		if len(l.targets) == 0 {
			l.restore()
		}
	})
}

// captureLogs makes klog and etcd's client write to l. The caller must hold the mutex.
func (l *processLog) captureLogs() (restore func()) {
	klogBefore := klog.CaptureState()
	setKlog("logtostderr", "false")
	setKlog("alsologtostderr", "false")
	// Otherwise klog also writes an error line once for each lower severity.
	setKlog("one_output", "true")
	// Fatal errors must not appear in a file only.
	setKlog("stderrthreshold", "FATAL")
	// Write to l rather than to the target, which changes when another control plane starts or
	// ends.
	klog.SetOutput(l)
	restoreEtcd := etcdlog.SendTo(l)
	return func() {
		restoreEtcd()
		klogBefore.Restore()
	}
}

// Write never fails: the control plane does not stop because of an unwritable log.
func (l *processLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.targets); n > 0 {
		_, _ = l.targets[n-1].Write(line)
	}
	return len(line), nil
}

// setKlog sets one of klog's flags, because some settings are accessible only as flags. It panics
// on unknown flags.
func setKlog(name, value string) {
	flags := flag.NewFlagSet("klog", flag.PanicOnError)
	klog.InitFlags(flags)
	if err := flags.Set(name, value); err != nil {
		panic(err) // the names and values are klog's own
	}
}

// etcdLog writes etcd's warnings to w. Each entry is one line, with the time in ISO
// 8601.
func etcdLog(w io.Writer) zapcore.Core {
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime = zapcore.ISO8601TimeEncoder
	return zapcore.NewCore(zapcore.NewConsoleEncoder(encoder), zapcore.Lock(zapcore.AddSync(w)), zapcore.WarnLevel)
}
