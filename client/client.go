// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"os"
	"strings"

	"connectrpc.com/connect"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
)

// Options configures the connection. The zero value sends no credentials and verifies the server by
// the CAs of the system.
type Options struct {
	// Token is the bearer token of the caller, as for the API server.
	Token string
	// TokenFile, if set, replaces Token. It is read for every request, because Kubernetes rotates
	// the tokens of service accounts.
	TokenFile string
	// CA holds the certificates in PEM that the server's certificate is verified by.
	CA []byte
	// Insecure disables the verification of the server. Tokens are then sent to any server at the
	// address.
	Insecure bool
	// GRPC selects gRPC instead of the Connect protocol.
	GRPC bool
}

// New returns a client of the query service at a URL such as https://127.0.0.1:8423. It does not
// connect yet.
func New(url string, o Options) (berthv1alpha1.QueryServiceClient, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: o.Insecure}
	if len(o.CA) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(o.CA) {
			return nil, errors.New("the CA has no certificate in PEM")
		}
	}
	options := []connect.ClientOption{connect.WithInterceptors(limit(concurrent))}
	if o.GRPC {
		options = append(options, connect.WithGRPC())
	}
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, MaxConnsPerHost: 4,
	}
	http := &http.Client{Transport: authorized{o, transport}}
	return berthv1alpha1.NewQueryServiceClient(http, strings.TrimSuffix(url, "/"), options...), nil
}

// concurrent is the number of requests in progress; others wait. Beyond the server's limit of
// streams per connection, which is higher, each request would open a connection, and the handshakes
// would delay all others.
const concurrent = 128

// limit lets n requests proceed at a time.
func limit(n int) connect.UnaryInterceptorFunc {
	turns := make(chan struct{}, n)
	return func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
				return next(ctx, r)
			case <-ctx.Done():
				code := connect.CodeCanceled
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					code = connect.CodeDeadlineExceeded
				}
				return nil, connect.NewError(code, ctx.Err())
			}
		}
	}
}

// authorized adds the token to requests.
type authorized struct {
	Options
	next http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	token := a.Token
	if a.TokenFile != "" {
		text, err := os.ReadFile(a.TokenFile)
		if err != nil {
			return nil, err
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return a.next.RoundTrip(r)
}
