// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// ReadOnly returns the configuration of a connection that cannot write: a request other than GET
// fails without being sent.
func ReadOnly(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnly{next} })
	return config
}

type readOnly struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (r readOnly) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		return nil, fmt.Errorf("%s %s is not sent: this command only reads", request.Method, request.URL.Path)
	}
	return r.next.RoundTrip(request)
}

// WrappedRoundTripper returns the transport below, for client-go.
func (r readOnly) WrappedRoundTripper() http.RoundTripper { return r.next }
