// Package door lets pods reach an API server that listens on loopback only: Serve takes their
// connections at an address in their network and relays the traffic of both sides.
package door

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// Serve forwards connections of the listener to the address that to returns at the time, until the
// listener is closed. Requests are authorized by the API server; here connections are bounded, so
// that one pod cannot use up the file descriptors of this process and of the API server. to is
// called for each connection, since the API server's port may change when it is restarted.
func Serve(l net.Listener, to func() (address string, err error)) {
	bounded := guard.Bound(l, guard.Ports)
	for {
		pod, err := bounded.Accept()
		if err != nil {
			return
		}
		go pass(pod, to)
	}
}

// pass connects a pod with the API server until either side closes the connection. The pod's
// connection is closed when it returns.
func pass(pod net.Conn, to func() (string, error)) {
	defer pod.Close()
	// There is no API server right now; the pod's client tries again.
	address, err := to()
	if err != nil {
		return
	}
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	var both errgroup.Group
	both.Go(func() error {
		_, err := io.Copy(server, pod)
		// The pod may close its side first and still read the rest of the answer.
		return errors.Join(err, server.(*net.TCPConn).CloseWrite())
	})
	both.Go(func() error {
		_, err := io.Copy(pod, server)
		// Also ends the copying in the other direction.
		return errors.Join(err, pod.Close())
	})
	_ = both.Wait() // a connection that breaks is the end of it
}
