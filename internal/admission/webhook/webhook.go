// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-k8s/berth/internal/admission/lookup"
	"github.com/berth-k8s/berth/internal/kube/guard"
)

// Webhook is one replica. Replicas share the Secret with the certificates and the configurations,
// and need no leader: any replica can perform any task that is due.
//
// It has three parts: reviews requested by API servers (newHandler), maintenance of certificates
// and configurations (keepCertificates), and health for probes and scrapers (endpointHandler).
type Webhook struct {
	options Options              // validated
	client  kubernetes.Interface // for the webhook's own maintenance
	clock   clock.WithTicker
	metrics *instruments
	// lookups is a separate client for reads that unauthenticated callers can cause.
	lookups kubernetes.Interface
	// evictions is a client without a limit, because evictions limit their requests themselves.
	evictions kubernetes.Interface
	lanes     *lanes         // bounds concurrent reviews
	clients   *x509.CertPool // CAs of allowed callers; nil allows all callers

	listener net.Listener // for reviews
	health   net.Listener // nil if disabled

	serving atomic.Pointer[tls.Certificate] // nil until the first certificate; replaced on renewal
	warm    chan struct{}                   // closed once the caches are filled
	written int                             // number of writes of the Secret and configurations; owned by keepCertificates

	ready   chan struct{} // closed once all prerequisites are met and the configurations are written
	leaving atomic.Bool   // shutting down
}

// New returns a webhook for the cluster of config. The webhook already listens, so that its
// addresses are known, but serves only during Run.
func New(config *rest.Config, options Options) (*Webhook, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	// An API server calls webhooks after its own plugins, so the plugins' additions must be
	// distinguished from the user's fields.
	options.Rules.AfterAPIServer = true
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)

	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	lookups, err := guard.Client(config)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	evictions, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}

	w := &Webhook{options: options, client: client, lookups: lookups, evictions: evictions, lanes: newLanes(), clock: options.Clock, metrics: newInstruments(),
		warm: make(chan struct{}), ready: make(chan struct{})}
	if options.ClientCAFile != "" {
		if w.clients, err = cert.NewPool(options.ClientCAFile); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}

	w.clock = cmp.Or[clock.WithTicker](w.clock, clock.RealClock{})
	if w.listener, err = net.Listen("tcp", options.Address); err != nil {
		return nil, fmt.Errorf("--bind-address: %w", err)
	}

	if options.Health != "" {
		if w.health, err = net.Listen("tcp", options.Health); err != nil {
			w.listener.Close()
			return nil, fmt.Errorf("--health-bind-address: %w", err)
		}
	}
	return w, nil
}

// Address returns the address serving reviews.
func (w *Webhook) Address() string { return w.listener.Addr().String() }

// HealthAddress returns the address of the health and metrics endpoints, or "" if they are
// disabled.
func (w *Webhook) HealthAddress() string {
	if w.health == nil {
		return ""
	}
	return w.health.Addr().String()
}

// listenPort returns the port serving reviews.
func (w *Webhook) listenPort() int { return w.listener.Addr().(*net.TCPAddr).Port }

// Ready is closed once the webhook serves reviews.
func (w *Webhook) Ready() <-chan struct{} { return w.ready }

// NotReady names the missing prerequisite for serving reviews, or returns "".
func (w *Webhook) NotReady() string {
	switch {
	case w.leaving.Load():
		return "shutting down"
	case w.serving.Load() == nil:
		return "no certificate yet"
	case !isClosed(w.warm):
		return "namespaces, priority classes and runtime classes are not known yet"
	case !isClosed(w.ready):
		return "the webhook configurations are not written yet"
	}
	return ""
}

// endLimit bounds the wait for reviews in flight during shutdown. It is longer than an API server
// waits for a review.
const endLimit = 30 * time.Second

// Run serves until ctx ends, and for the shutdown delay afterwards. It must be called only once.
// During the delay the replica is not ready, so that API servers switch to another one, but it
// still maintains certificates and configurations.
func (w *Webhook) Run(ctx context.Context) error {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer end()

	factory := informers.NewSharedInformerFactory(w.client, 0)
	reviewer := &reviewer{rules: w.options.Rules, caches: lookup.NewCaches(w.lookups, factory), now: w.clock.Now}
	factory.Start(running.Done())
	defer factory.Shutdown()
	defer end()
	parts.Go(func() {
		factory.WaitForCacheSync(running.Done())
		if running.Err() == nil {
			close(w.warm)
		}
	})
	// Start this while the caches are being filled, so that the first certificate is created in the
	// meantime.
	parts.Go(func() { w.keepCertificates(running) })

	reviews := w.newServer(guard.OnlyNamed(w.options.dnsNames(), w.newHandler(reviewer)))
	servers := []*http.Server{reviews}
	failed := make(chan error, 2)
	parts.Go(func() { failed <- reviews.ServeTLS(guard.Bound(w.listener, connections), "", "") })
	if w.health != nil {
		health := guard.Server(w.endpointHandler())
		servers = append(servers, health)
		parts.Go(func() { failed <- health.Serve(guard.Bound(w.health, guard.Ports)) })
	}

	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		// The Service removes this replica; for some time API servers still call it.
		w.leaving.Store(true)
		klog.FromContext(ctx).Info("Shutting down: not ready any more", "delay", w.options.ShutdownDelay)
		select {
		case <-time.After(w.options.ShutdownDelay):
		case err = <-failed:
		}
	}
	ending, cancel := context.WithTimeout(running, endLimit)
	defer cancel()
	for _, server := range servers {
		// Shutdown completes reviews in flight.
		err = errors.Join(err, server.Shutdown(ending))
	}
	return err
}

// newServer returns the HTTPS server for reviews. Each connection uses the current serving
// certificate, so a renewal needs no restart. Reviews use HTTP/2, with many reviews on one
// connection.
func (w *Webhook) newServer(handler http.Handler) *http.Server {
	config := &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			if serving := w.serving.Load(); serving != nil {
				return serving, nil
			}
			return nil, errors.New("no certificate yet")
		},
	}
	if w.clients != nil {
		config.ClientCAs, config.ClientAuth = w.clients, tls.RequireAndVerifyClientCert
		handler = admitCallers(handler)
	}

	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: guard.SendTime,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       guard.ConnContext,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streams, MaxReceiveBufferPerConnection: buffered,
			MaxReceiveBufferPerStream: buffered},
		TLSConfig: config,
		ErrorLog:  guard.ErrorLog(),
	}
}

// admitCallers marks the connections of callers with a client certificate as admitted, so that
// connections of other callers cannot displace them. The TLS configuration requires the
// certificate.
func admitCallers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if !guard.Admit(request) {
			guard.Refuse(out, http.StatusServiceUnavailable, "too many connections are open")
			return
		}
		next.ServeHTTP(out, request)
	})
}

// isClosed reports whether the channel is closed.
func isClosed(channel <-chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}
