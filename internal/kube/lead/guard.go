// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// Guard keeps a client's connections from sending anything once over is true, such as Elector.Over.
// A process suspended or starved during its leadership resumes later in the middle of its requests,
// possibly concurrently with another leader; the API server would carry them out. They can be held
// back until just before each write to the network.
func Guard(config *rest.Config, over func() bool) {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext // client-go's own
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &guarded{conn, over}, nil
	}
}

// guarded is a connection that writes nothing once over is true.
type guarded struct {
	net.Conn
	over func() bool
}

// Write closes the connection instead of writing once over is true, so that waiting requests fail
// immediately.
func (g *guarded) Write(b []byte) (int, error) {
	if g.over() {
		g.Close()
		return 0, ErrLost
	}
	return g.Conn.Write(b)
}
