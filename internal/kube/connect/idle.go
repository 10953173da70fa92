// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// KeepIdle makes a client over HTTP/1.1 keep up to n idle connections. client-go keeps 25 and
// closes the rest, but opening one costs as much CPU as several small requests. The configuration
// must have a private Dial, so that no other client shares the transport. KeepIdle must be called
// before the client is made.
func KeepIdle(config *rest.Config, n int) {
	config.Wrap(func(outer http.RoundTripper) http.RoundTripper {
		// client-go wraps its transport several times, for credentials and logging; the pool of
		// connections is the innermost.
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
