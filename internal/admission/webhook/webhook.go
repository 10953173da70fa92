package webhook

import (
	"context"
	"crypto/sha256"
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

	"github.com/berth-k8s/berth/internal/admission/live"
	"github.com/berth-k8s/berth/internal/kube/guard"
)

// Webhook is one replica. Replicas share the Secret with the certificates and the configurations,
// and need no leader: each can do all the work, and does what it finds undone.
//
// It has three sides: reviews (newHandler), which API servers ask for; certificates and
// configurations (keepCertificates), which it keeps right; and health (endpointHandler), which
// probes and scrapers read.
type Webhook struct {
	options Options              // validated
	client  kubernetes.Interface // for what the webhook does of itself
	clock   clock.WithTicker
	metrics *instruments
	// lookups is a separate client for reads that unauthenticated callers can cause.
	lookups kubernetes.Interface
	lanes   *lanes         // room for reviews
	clients *x509.CertPool // who may ask for reviews; nil is everybody

	listener net.Listener // of reviews
	health   net.Listener // nil for none

	serving atomic.Pointer[tls.Certificate] // nil until there is one; replaced when it is renewed
	warm    chan struct{}                   // closed when the caches are filled
	written int                             // writes of the Secret and configurations; keepCertificates owns it

	ready   chan struct{} // closed when all is there and the configurations are written
	leaving atomic.Bool   // shutting down
}

// New returns a webhook for the cluster of config. It listens already, so that its addresses are
// known; nothing is answered before Run.
func New(config *rest.Config, options Options) (*Webhook, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	// An API server calls webhooks after its own plugins, so what those have added has to be told
	// from the user's.
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

	w := &Webhook{options: options, client: client, lookups: lookups, lanes: newLanes(), clock: options.Clock, metrics: newInstruments(),
		warm: make(chan struct{}), ready: make(chan struct{})}
	if options.ClientCAFile != "" {
		if w.clients, err = cert.NewPool(options.ClientCAFile); err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
	}

	if w.clock == nil {
		w.clock = clock.RealClock{}
	}
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

// Address is where reviews are answered.
func (w *Webhook) Address() string { return w.listener.Addr().String() }

// HealthAddress is the address of the health and metrics endpoints, "" if there are none.
func (w *Webhook) HealthAddress() string {
	if w.health == nil {
		return ""
	}
	return w.health.Addr().String()
}

// listenPort is the port on which reviews are answered.
func (w *Webhook) listenPort() int { return w.listener.Addr().(*net.TCPAddr).Port }

// Ready is closed when reviews are answered for the first time.
func (w *Webhook) Ready() <-chan struct{} { return w.ready }

// NotReady says what is missing before reviews are answered, "" if nothing is.
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

// endLimit bounds how long reviews under way are waited for at the end: longer
// than an API server waits for them.
const endLimit = 30 * time.Second

// Run serves until ctx ends, and then still for the shutdown delay. It runs once. In that time the
// replica is not ready, so that API servers learn to call another one, and certificates and
// configurations are still kept.
func (w *Webhook) Run(ctx context.Context) error {
	running, end := context.WithCancel(context.WithoutCancel(ctx))
	var parts sync.WaitGroup
	defer parts.Wait()
	defer end()

	factory := informers.NewSharedInformerFactory(w.client, 0)
	reviewer := &reviewer{rules: w.options.Rules, caches: live.NewCaches(w.lookups, factory), now: w.clock.Now}
	factory.Start(running.Done())
	defer factory.Shutdown()
	defer end()
	parts.Go(func() {
		factory.WaitForCacheSync(running.Done())
		if running.Err() == nil {
			close(w.warm)
		}
	})
	// Beside the filling of the caches: the first certificate is made while they fill.
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
		// The Service learns that this replica is leaving; for some time API servers still call it.
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
		// Reviews under way are answered.
		err = errors.Join(err, server.Shutdown(ending))
	}
	return err
}

// newServer returns the HTTPS server for reviews. The serving certificate is asked for with each
// connection, so a renewed one needs no restart. Reviews come by HTTP/2, many on one connection.
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

// admitCallers serves callers that have shown a certificate (the TLS configuration requires one) as
// admitted ones: strangers cannot displace their connections.
func admitCallers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		if !guard.Admit(in) {
			guard.Refuse(out, http.StatusServiceUnavailable, "too many connections are open")
			return
		}
		next.ServeHTTP(out, in)
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

// Fingerprint is the serving certificate's SHA-256 in hexadecimal, "" if there is none yet:
// replicas that share the certificates have the same one.
func (w *Webhook) Fingerprint() string {
	serving := w.serving.Load()
	if serving == nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(serving.Certificate[0]))
}
