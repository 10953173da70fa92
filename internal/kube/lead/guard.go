// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// Guard prevents the client's connections from sending anything after over has returned true; over
// is usually Elector.Over. A process that is suspended while it leads may resume in the middle of a
// request when another replica leads, and the API server would carry out the request. Therefore
// over is called right before each write to the network.
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

// guarded is a connection that writes nothing when over returns true.
type guarded struct {
	net.Conn
	over func() bool
}

// Write closes the connection instead of writing if over returns true, so that pending requests
// fail immediately.
func (g *guarded) Write(b []byte) (int, error) {
	if g.over() {
		g.Close()
		return 0, ErrLost
	}
	return g.Conn.Write(b)
}
