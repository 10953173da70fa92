// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package etcdlog sends the messages of etcd's client to Berth's log.
//
// The API server's storage code creates the logger of its etcd clients in an init function. That
// logger always writes to standard error. The only way to influence that logger is to change etcd's
// default configuration earlier. Go initializes packages in the order of their import paths as soon
// as their imports are initialized; this package imports less than that code, and its path sorts
// before "k8s.io", so its init runs first.
package etcdlog

import (
	"io"
	"net/url"
	"os"
	"sync/atomic"

	"go.etcd.io/etcd/client/pkg/v3/logutil"
	"go.uber.org/zap"
)

// scheme is the URL scheme of the sink in zap's configuration.
const scheme = "berth-etcdlog"

// target is the destination of the log; nil: standard error.
var target atomic.Pointer[io.Writer]

func init() {
	if err := zap.RegisterSink(scheme, func(*url.URL) (zap.Sink, error) { return sink{}, nil }); err != nil {
		panic(err) // only this package registers the scheme
	}
	// OutputPaths is the only setting of the logger that other packages can change.
	logutil.DefaultZapLoggerConfig.OutputPaths = []string{scheme + "://"}
}

// SendTo directs the log to w and returns an undo function. Without SendTo it goes to standard
// error. After a later SendTo, restore is a no-op: the later one stays in effect.
func SendTo(w io.Writer) (restore func()) {
	before := target.Swap(&w)
	return func() { target.CompareAndSwap(&w, before) }
}

// sink writes to the current target.
type sink struct{}

func (sink) Write(line []byte) (int, error) {
	if w := target.Load(); w != nil {
		return (*w).Write(line)
	}
	return os.Stderr.Write(line)
}

func (sink) Sync() error  { return nil }
func (sink) Close() error { return nil }
