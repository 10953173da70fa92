// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package relay lets pods reach an API server that listens on loopback only: Serve accepts their
// connections at an address in their network and relays the traffic in both directions.
package relay

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/berth-k8s/berth/internal/kube/guard"
)

// Serve forwards connections of the listener to the current address returned by to, until the
// listener is closed. The API server authorizes the requests; Serve limits connections, so that one
// pod cannot exhaust the file descriptors of this process and of the API server. It calls to for
// each connection, since the API server's port may change on a restart.
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

// pass relays data between a pod and the API server until the API server closes its connection. It
// closes the pod's connection before it returns.
func pass(pod net.Conn, to func() (string, error)) {
	defer pod.Close()
	// On an error, the API server is down, and the pod's client retries.
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
		// The pod may close its side first and still read the rest of the response.
		return errors.Join(err, server.(*net.TCPConn).CloseWrite())
	})
	both.Go(func() error {
		_, err := io.Copy(pod, server)
		// This also ends the copying in the other direction.
		return errors.Join(err, pod.Close())
	})
	_ = both.Wait() // ignore broken connections
}
