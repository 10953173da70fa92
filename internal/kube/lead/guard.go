package lead

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// Guard makes the connections of a client send nothing once over is true, such as Elector.Over. A
// process that was stopped, or starved, while it led continues where it was when it runs again,
// with requests that it has begun and possibly beside another leader; the API server would carry
// them out. Just before each write to the network is the last moment at which they can be held
// back.
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

// Write closes the connection instead of writing once over is true, so that requests that wait on
// it fail at once.
func (g *guarded) Write(b []byte) (int, error) {
	if g.over() {
		g.Close()
		return 0, ErrLost
	}
	return g.Conn.Write(b)
}
