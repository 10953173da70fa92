// Package etcdlog sends what etcd's client logs into Berth's log.
//
// The API server's storage code makes the logger of its etcd clients in an init function, always
// for standard error. What it can be given is etcd's default configuration, if that is changed
// before. Go initializes packages in the order of their import paths as soon as their imports are
// initialized; this package imports less than that code, and its path sorts before "k8s.io", so its
// init runs first.
package etcdlog

import (
	"io"
	"net/url"
	"os"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.uber.org/zap"
)

// scheme is that of the sink's address in zap's configuration.
const scheme = "berth-etcdlog"

// target is where the log goes; nil: standard error.
var target atomic.Pointer[io.Writer]

func init() {
	if err := zap.RegisterSink(scheme, func(*url.URL) (zap.Sink, error) { return sink{}, nil }); err != nil {
		panic(err) // the scheme is ours alone
	}
	// The only setting of the logger that can be changed from outside.
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{scheme + "://"}
}

// SendTo makes w receive the log from now on, and returns what undoes that. Without, it goes to
// standard error. If another SendTo came after it, restore does nothing: the later one is in
// effect.
func SendTo(w io.Writer) (restore func()) {
	before := target.Swap(&w)
	return func() { target.CompareAndSwap(&w, before) }
}

// sink writes to whatever is the target at the time.
type sink struct{}

func (sink) Write(line []byte) (int, error) {
	if w := target.Load(); w != nil {
		return (*w).Write(line)
	}
	return os.Stderr.Write(line)
}

func (sink) Sync() error  { return nil }
func (sink) Close() error { return nil }
