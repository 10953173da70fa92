// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// WithRemedy replaces errors caused by an unreachable API server or rejected credentials with an
// error that names a remedy. Other errors, nil included, are returned unchanged. The returned error
// wraps the original one.
func WithRemedy(err error) error {
	var urlErr *url.Error
	var netErr net.Error
	switch {
	// net/http wraps any failure before a response in a url.Error, with the URL of the API server.
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

// unreached is an error with a replaced text.
type unreached struct {
	text string
	err  error
}

// Error returns the text with the remedy.
func (e *unreached) Error() string { return e.text }

// Unwrap returns the underlying error, for callers that examine its kind.
func (e *unreached) Unwrap() error { return e.err }

// host returns the scheme and host of a URL, or the text itself if it is not a URL.
func host(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Scheme + "://" + u.Host
	}
	return address
}

// KeepIdle makes a client that uses HTTP/1.1 keep up to n idle connections. By default, client-go
// keeps 25 and closes further connections, although opening a connection costs as much CPU as
// several small requests. The configuration must have a private Dial, so that no other client
// shares the transport. KeepIdle must be called before the client is made.
func KeepIdle(config *rest.Config, n int) {
	config.Wrap(func(outer http.RoundTripper) http.RoundTripper {
		// client-go wraps its transport several times, for credentials and logging. The innermost
		// transport has the connection pool.
		for inner := outer; ; {
			switch t := inner.(type) {
			case *http.Transport:
				t.MaxIdleConnsPerHost = n
				return outer
			case utilnet.RoundTripperWrapper:
				inner = t.WrappedRoundTripper()
			default:
				return outer
			}
		}
	})
}
