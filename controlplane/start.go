// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/internal/durable"
)

// TB is the part of testing.TB used by Start. A separate interface avoids an import of testing.
type TB interface {
	Helper()
	TempDir() string
	Cleanup(func())
	Logf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Cluster is a control plane running for a test. Its methods fail the test on error.
type Cluster struct {
	// Config is an administrator's configuration, without a client-side rate limit. Copy it before
	// changing it.
	Config *rest.Config
	// Kubeconfig is the path of the equivalent file for kubectl and other processes.
	Kubeconfig string

	t       TB
	running *controlPlane
	files   atomic.Int32
}

// startLimit is generous: a machine running many tests concurrently is slow, not broken.
const startLimit = 2 * time.Minute

// Start starts a control plane in this process and returns when it is ready. The control plane ends
// with the test, or at Stop. Its state is in t.TempDir() unless an option sets DataDir; a later
// Start with the same DataDir continues from that state. Several control planes may run
// concurrently, each with a separate port, etcd and controllers. If the control plane cannot be
// started, the test fails immediately, with the end of the log.
func Start(t TB, options ...func(*Options)) *Cluster {
	t.Helper()
	var o Options
	for _, option := range options {
		option(&o)
	}

	if o.DataDir == "" {
		o.DataDir = t.TempDir()
	}
	// The context covers the start only; the control plane outlives it.
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	running, err := launchPlane(ctx, o, io.Discard)
	if err != nil {
		// The test removes the data directory, so include the log in the message.
		t.Fatalf("control plane: %v%s", err, logTail(o.DataDir))
		return nil
	}

	c := &Cluster{t: t, running: running, Kubeconfig: running.kubeconfigPath()}
	t.Cleanup(c.Stop)
	// system:masters may do everything, regardless of RBAC.
	c.Config = c.ConfigFor(adminUser, mastersGroup)
	return c
}

// Stop ends the control plane and keeps its state. It runs automatically at the end of the test;
// further calls are no-ops.
func (c *Cluster) Stop() { c.running.stop() }

// ConfigFor returns a client configuration for a user with the given name and groups, subject to
// RBAC. Users and groups exist only in the certificate and need no API objects.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	c.t.Helper()
	config, err := c.running.clientConfig(user, groups...)
	if err != nil {
		c.t.Fatalf("client configuration for %s: %v", user, err)
		return nil
	}
	// Do not throttle tests' clients.
	config.QPS = -1
	return config
}

// KubeconfigFor returns the path of a new kubeconfig for a user with the given name and groups. The
// test removes the file at its end.
func (c *Cluster) KubeconfigFor(user string, groups ...string) string {
	c.t.Helper()
	config, err := c.running.pki.newKubeconfig(c.running.server, user, groups...)
	if err != nil {
		c.t.Fatalf("%v", err)
		return ""
	}
	// A test may create several kubeconfigs.
	path := filepath.Join(c.t.TempDir(), fmt.Sprintf("kubeconfig-%d", c.files.Add(1)))
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		c.t.Fatalf("kubeconfig for %s: %v", user, err)
		return ""
	}
	return path
}

// logTail returns the last log lines for a failure message. It is empty if the log is missing.
func logTail(dataDir string) string {
	const lines = 20
	content, err := os.ReadFile(filepath.Join(dataDir, "controlplane.log"))
	if err != nil || len(content) == 0 {
		return ""
	}
	all := strings.Split(string(bytes.TrimSpace(content)), "\n")
	return "\nlast lines of its log:\n" + strings.Join(all[max(0, len(all)-lines):], "\n")
}

// etcd is a single member without a listener: the API server connects to it in memory. It therefore
// needs no port and no certificates, and other processes on the machine cannot reach it. While the
// process is stopped, etcdutl can be used on the directory.
type etcd struct {
	fail     context.CancelCauseFunc // called when etcd gives up or its server ends
	gaveUp   chan error              // receives the reason for startMember after etcd gave up; at most one
	once     sync.Once               // guards the report that etcd gave up
	over     atomic.Bool             // etcd has given up
	listener *bufconn.Listener
	member   *embed.Etcd
	server   *grpc.Server
}

const (
	etcdQuota = 8 << 30 // etcd's suggested maximum; 100,000 pods with their history need a fraction of it

	// A single member receives no heartbeats: the timeout only delays the first leader after a
	// start.
	etcdTickMs, etcdElectionMs = 20, 100

	// This limit begins after the files are read. The remaining startup takes milliseconds or never
	// ends, for example after the loss of the write-ahead log.
	etcdReadyLimit = time.Minute

	// This is the default of etcd's own flags; the zero value would log every request.
	etcdSlowRequest = 300 * time.Millisecond

	// A connection in memory has two buffers of this size, and the API server opens one for each of
	// its 130 resources.
	etcdPipe = 32 << 10
)

// newEtcd returns a member that has not started. fail is called if etcd gives up or its server
// ends.
func newEtcd(fail context.CancelCauseFunc) *etcd {
	return &etcd{fail: fail, gaveUp: make(chan error, 1), listener: bufconn.Listen(etcdPipe)}
}

// startMemberIn blocks until the member serves or fails. When it returns nil, the caller's client
// may dial immediately. log receives etcd's warnings.
func (e *etcd) startMemberIn(dir string, log zapcore.Core) error {
	if err := prepareEtcdDir(dir); err != nil {
		return err
	}
	if err := e.startMember(e.memberConfig(dir, log)); err != nil {
		advice := "restore the directory or name an empty one with --data-dir"
		if strings.Contains(err.Error(), syscall.ENOSPC.Error()) { // etcd reports a full disk only in its log
			advice = "free disk space and start again; acknowledged writes are on disk"
		}
		return fmt.Errorf("%s: etcd cannot start: %w: %s", dir, err, advice)
	}
	// From here on, the directory holds acknowledged state.
	if err := finishEtcdDir(dir); err != nil {
		return err
	}
	// TLS is unnecessary: the data stays in the process's memory.
	e.server = v3rpc.Server(e.member.Server, nil, nil)
	go func() {
		if err := e.server.Serve(e.listener); err != nil {
			// Serve returns an error only if it was not stopped.
			e.fail(fmt.Errorf("etcd: %w", err))
		}
	}()
	return nil
}

// unfinished is the suffix of a marker file next to etcd's directory, which is present until etcd
// has become ready in that directory. If etcd is killed between creating its log and recording
// itself in the log as a member, a restarted etcd waits forever for the other members of an empty
// cluster.
const unfinished = ".unfinished"

// prepareEtcdDir creates the directory, replacing a directory that never became ready and thus
// holds no acknowledged state. The marker is written before the directory is created; finishEtcdDir
// removes it.
func prepareEtcdDir(dir string) error {
	if _, err := os.Lstat(dir + unfinished); err == nil {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := writeDurably(dir+unfinished, nil, 0o600); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%s: %w: make it accessible or name another --data-dir", dir, stripPath(err))
	}
	return nil
}

// finishEtcdDir runs before the first request is served. It syncs the parent directory; otherwise a
// power cut could restore the marker, and the next start would delete the state.
func finishEtcdDir(dir string) error {
	err := os.Remove(dir + unfinished)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errors.Join(err, durable.SyncDir(filepath.Dir(dir)))
}

// startMember starts etcd, but does not rely on StartEtcd to return: on broken files, StartEtcd may
// panic, or wait for a goroutine that gave up. In that case, the goroutine that called StartEtcd is
// abandoned until the process exits.
func (e *etcd) startMember(config *embed.Config) error {
	type result struct {
		member *embed.Etcd
		err    error
	}
	started := make(chan result, 1)

	go func() {
		defer func() {
			if cause := recover(); cause != nil {
				started <- result{err: fmt.Errorf("%v", cause)}
			}
		}()
		member, err := embed.StartEtcd(config)
		started <- result{member, err}
	}()

	select {
	case r := <-started:
		if r.err != nil {
			return r.err
		}
		e.member = r.member
	case err := <-e.gaveUp:
		return err
	}

	select {
	case <-e.member.Server.ReadyNotify():
		return nil
	case err := <-e.gaveUp:
		return err
	case <-time.After(etcdReadyLimit):
		return fmt.Errorf("not ready after %v", etcdReadyLimit)
	}
}

// memberConfig returns etcd's defaults for a single member without a network.
func (e *etcd) memberConfig(dir string, log zapcore.Core) *embed.Config {
	config := embed.NewConfig()
	config.Dir = dir
	config.Name = "berth"
	// The cluster consists of this member only.
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ListenPeerUrls, config.ListenClientUrls = nil, nil
	config.TickMs, config.ElectionMs = etcdTickMs, etcdElectionMs
	config.QuotaBackendBytes = etcdQuota
	// etcd has no HTTP clients.
	config.EnableGRPCGateway = false
	config.WarningUnaryRequestDuration = etcdSlowRequest
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log,
		zap.ErrorOutput(zapcore.AddSync(io.Discard)), // do not report an unwritable log on standard error
		zap.WithFatalHook(etcdEnd{e}), zap.WithPanicHook(etcdEnd{e})))
	return config
}

// stop ends the member's goroutines and closes its files; acknowledged writes are already on disk.
// It may be called whether or not the member has started.
func (e *etcd) stop() {
	// Stop requests first, so that none waits for a closing member.
	if e.server != nil {
		e.server.Stop()
	}
	e.listener.Close()
	if e.member != nil && !e.over.Load() { // stopping a member that gave up would block forever
		e.member.Close()
	}
}

// etcdEnd replaces os.Exit and panic when etcd gives up, for example on a broken file or a full
// disk: it blocks the goroutine and reports the reason to the control plane. It implements
// zapcore.CheckWriteHook.
type etcdEnd struct{ etcd *etcd }

// OnWrite runs after the message was logged. It never returns.
func (h etcdEnd) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			// The message without its cause often reports only that something failed.
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	h.etcd.once.Do(func() {
		// Set over before reporting the failure, because stop reads it.
		h.etcd.over.Store(true)
		h.etcd.fail(fmt.Errorf("etcd failed: %w: fix this and start again; acknowledged writes are on disk", err))
		h.etcd.gaveUp <- err
	})
	// Block instead of ending the goroutine: its deferred calls would let other parts of etcd
	// continue normally, or panic.
	select {}
}
