package lead

import (
	"context"
	"net"
	"time"

	"k8s.io/client-go/rest"
)

// Guard has the connections of a client send nothing any more when over says so: Elector.Over, say.
// A process that was stopped, or starved, while it led goes on where it was when it runs again,
// with requests that it has begun and maybe with another leader beside it; the API server would do
// what they say. What is looked at just before each write to the network is the last moment at
// which they can be kept back.
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

type guarded struct {
	net.Conn
	over func() bool
}

func (g *guarded) Write(b []byte) (int, error) {
	if g.over() {
		g.Close()
		return 0, ErrLost
	}
	return g.Conn.Write(b)
}
