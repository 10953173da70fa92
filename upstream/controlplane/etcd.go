package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// etcd is a single member that listens nowhere: the API server reaches it through memory. So it needs no port and no
// certificates, and nobody else on the machine can reach it. Offline, its directory is an ordinary one for etcdutl.
type etcd struct {
	fail     context.CancelCauseFunc // told when etcd gives up
	gaveUp   chan error              // the same, for start; at most one
	listener *bufconn.Listener
	member   *embed.Etcd
	server   *grpc.Server
}

const (
	etcdQuota = 8 << 30 // what etcd itself suggests as the most; 100,000 pods with their history need a fraction

	// With one member there is nobody to hear heartbeats from: the timeout only delays the first leader after a start.
	etcdTickMs, etcdElectionMs = 20, 100

	// Files are read by then; what is left takes milliseconds, or never ends, as when the write-ahead log was lost.
	etcdReadyLimit = time.Minute

	// What etcd's own flags default to; the zero value would log every request.
	etcdSlowRequest = 300 * time.Millisecond

	// A connection in memory has two buffers of this size, and the API server opens one for each of its 130 resources.
	etcdPipe = 32 << 10
)

func newEtcd(fail context.CancelCauseFunc) *etcd {
	return &etcd{fail: fail, gaveUp: make(chan error, 1), listener: bufconn.Listen(etcdPipe)}
}

func (e *etcd) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return e.listener.DialContext(ctx)
}

// start blocks until the member serves, or cannot.
func (e *etcd) start(dir string, log zapcore.Core) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%s: %w: make it accessible or name another --data-dir", dir, bare(err))
	}
	if err := e.startMember(e.config(dir, log)); err != nil {
		return fmt.Errorf("%s: etcd cannot start: %w: restore the directory or name an empty one with --data-dir", dir, err)
	}
	e.server = v3rpc.Server(e.member.Server, nil, nil)
	go func() {
		if err := e.server.Serve(e.listener); err != nil {
			e.fail(fmt.Errorf("etcd: %w", err))
		}
	}()
	return nil
}

func (e *etcd) startMember(config *embed.Config) error {
	started := make(chan error, 1)
	go func() {
		// etcdEnd leaves this goroutine without a value; then gaveUp has the reason.
		defer close(started)
		var err error
		e.member, err = embed.StartEtcd(config)
		started <- err
	}()
	if err, returned := <-started; !returned {
		return <-e.gaveUp
	} else if err != nil {
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

func (e *etcd) config(dir string, log zapcore.Core) *embed.Config {
	config := embed.NewConfig()
	config.Dir = dir
	config.Name = "berth"
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ListenPeerUrls, config.ListenClientUrls = nil, nil
	config.TickMs, config.ElectionMs = etcdTickMs, etcdElectionMs
	config.QuotaBackendBytes = etcdQuota
	config.EnableGRPCGateway = false
	config.WarningUnaryRequestDuration = etcdSlowRequest
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log,
		zap.WithFatalHook(etcdEnd{e}), zap.WithPanicHook(etcdEnd{e})))
	return config
}

// stop ends the member. What it acknowledged is on disk already; this only ends its goroutines and files in order.
func (e *etcd) stop() {
	if e.server != nil {
		e.server.Stop()
	}
	e.listener.Close()
	if e.member != nil {
		e.member.Close()
	}
}

// etcdEnd takes the place of os.Exit and panic where etcd gives up, such as on a broken file or a full disk: the
// goroutine ends, and the control plane learns why.
type etcdEnd struct{ etcd *etcd }

func (h etcdEnd) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	err := errors.New(entry.Message)
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			err = fmt.Errorf("%s: %w", entry.Message, cause)
		}
	}
	select {
	case h.etcd.gaveUp <- err:
		h.etcd.fail(fmt.Errorf("etcd: %w", err))
	default: // not the first
	}
	runtime.Goexit()
}
