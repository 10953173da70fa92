// Package socket connects the node and programs on the same machine by gRPC: it serves APIs of the
// node, and dials those of plugins.
package socket

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
)

// again is how long to wait after a socket could not be served.
const again = 5 * time.Second

// Serve serves at a Unix socket, whose folder it makes, until ctx ends, and returns when no request
// is under way any more. If it cannot, it tries again; state is called with why, and with nil once
// it can.
func Serve(ctx context.Context, path string, register func(*grpc.Server), state func(error), options ...grpc.ServerOption) {
	for told := ""; ctx.Err() == nil; {
		err := serve(ctx, path, register, state, options)
		if ctx.Err() != nil {
			return
		}
		state(err)
		if told != err.Error() {
			told = err.Error()
			klog.ErrorS(err, "Cannot serve a socket; it is tried again", "socket", path)
		}
		select {
		case <-ctx.Done():
		case <-time.After(again):
		}
	}
}

func serve(ctx context.Context, path string, register func(*grpc.Server), state func(error), options []grpc.ServerOption) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 { // of an agent that was killed
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer(append(options, grpc.WaitForHandlers(true))...)
	register(server)
	defer server.Stop()
	defer context.AfterFunc(ctx, server.Stop)()
	state(nil)
	klog.V(2).InfoS("Serving a socket", "socket", path)
	return server.Serve(listener)
}

// Dial returns a connection to a Unix socket. It connects when it is used first.
func Dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+filepath.Base(path), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
}
