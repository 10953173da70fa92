package connect

import (
	"context"
	"errors"
	"net"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Reach says what to do about a request that no API server answered, or whose credentials were not
// accepted, in place of the many errors that a connection has. Other errors, nil included, are
// returned unchanged. The error that it returns wraps the original one.
func Reach(err error) error {
	var urlErr *url.Error
	var netErr net.Error
	switch {
	// net/http wraps whatever goes wrong before an answer in a url.Error: the URL tells where the
	// API server was looked for.
	case errors.As(err, &urlErr):
		why := urlErr.Err.Error()
		if errors.Is(urlErr.Err, context.DeadlineExceeded) || errors.As(urlErr.Err, &netErr) && netErr.Timeout() {
			why = "no answer"
		}
		return &unreached{"the API server (" + host(urlErr.URL) + ") cannot be reached: " + why +
			": check that the cluster runs, and --kubeconfig or KUBECONFIG", err}
	case errors.Is(err, context.DeadlineExceeded):
		return &unreached{"the API server cannot be reached: no answer: check that the cluster runs, and --kubeconfig or KUBECONFIG", err}
	case apierrors.IsUnauthorized(err):
		return &unreached{"the API server does not accept the credentials (" + err.Error() +
			"): check --kubeconfig or KUBECONFIG, and whether they have expired", err}
	}

	return err
}

// unreached is an error with another text.
type unreached struct {
	text string
	err  error
}

// Error says what to do, in place of what went wrong underneath.
func (e *unreached) Error() string { return e.text }

// Unwrap returns what went wrong, for callers that go by the kind of error.
func (e *unreached) Unwrap() error { return e.err }

// host is the scheme and host of a URL, or the text itself if it is none.
func host(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return address
}
