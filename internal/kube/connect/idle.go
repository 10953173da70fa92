// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"net/http"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

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
