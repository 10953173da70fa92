package guard

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

const (
	// SendTime and takeTime bound how long a caller may take to send a request, and to read the
	// answer.
	SendTime = 10 * time.Second
	takeTime = 30 * time.Second
	// profileTime is takeTime for profiles.
	profileTime = 10 * time.Minute
)

// Server returns a server for requests that are answered immediately, for use with a Listener. It
// reads no headers of more than 64 KiB, and logs what net/http complains about at the usual level.
func Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           inTime(handler),
		ReadHeaderTimeout: SendTime,
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       ConnContext,
		ErrorLog:          klog.NewStandardLogger("INFO"),
	}
}

// Serve answers requests on the listener, within the bounds of Ports, until the context ends.
func Serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := Server(handler)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(Bound(l, Ports)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// inTime gives every request its deadlines. The server has none for all requests alike: a profile
// takes as long as the caller requested.
func inTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		connection, now := http.NewResponseController(w), time.Now()
		if r.Body != nil && r.Body != http.NoBody {
			_ = connection.SetReadDeadline(now.Add(SendTime))
		}
		take := takeTime
		if strings.HasPrefix(r.URL.Path, "/debug/pprof/") {
			take = profileTime
		}
		_ = connection.SetWriteDeadline(now.Add(take))
		next.ServeHTTP(w, r)
	})
}
