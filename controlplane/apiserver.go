// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/client-go/rest"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// apiServer wraps all three upstream servers: core, extensions (CRDs) and aggregation. It is
// configured (configureAPIServer), then started (startServer), and stops when the context passed to
// startServer ends.
type apiServer struct {
	config app.CompletedConfig
	server *aggregator.APIAggregator
	ended  chan struct{} // closed once the server has ended for any reason
	err    error         // the reason; valid once ended is closed
	ready  bool          // the server was ready once, so its hooks are done; written during startup, read during shutdown
}

const (
	// Clients are few and trusted, being Berth's own; on two cores the CPU saturates long before
	// these limits are reached.
	maxRequestsInflight, maxMutatingRequestsInflight = 1600, 800

	// apiShutdownLimit bounds the time open connections may delay the server's shutdown. Watches
	// end earlier.
	apiShutdownLimit = 2 * time.Second

	// settleLimit bounds the time that a shutdown waits for an unfinished startup; see
	// awaitStarted. A startup takes about a second.
	settleLimit = 2 * time.Second

	authenticationFile = "authentication.yaml"
)

// anonymousHealth restricts anonymous requests to the health endpoints.
const anonymousHealth = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

// configureAPIServer does about half of the startup work, the part independent of etcd. The
// listener is already bound; the server takes it over.
func configureAPIServer(ctx context.Context, o Options, d *dataDir, p *pki, e *etcd, l *net.TCPListener) (*apiServer, error) {
	run, err := apiServerOptions(o, d, p, e, l)
	if err != nil {
		return nil, err
	}

	// Upstream fills in values left open by flags, such as the external address.
	completed, err := run.Complete(ctx)
	if err != nil {
		return nil, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}

	config, err := app.NewConfig(completed)
	if err != nil {
		return nil, err
	}
	// The hooks cannot be replaced once the configuration is completed, so replace them first.
	if err := replaceBootstrapHooks(config.KubeAPIs.ControlPlane.Generic, o.GuardEvictions); err != nil {
		return nil, err
	}

	complete, err := config.Complete()
	if err != nil {
		return nil, err
	}
	return &apiServer{config: complete, ended: make(chan struct{})}, nil
}

// startServer connects the server to etcd and runs it until ctx ends. It returns before the server
// is ready. If it returns an error, nothing is running.
func (s *apiServer) startServer(ctx context.Context) error {
	// CreateServerChain makes the first reads from etcd.
	server, err := app.CreateServerChain(s.config)
	if err != nil {
		return err
	}
	// Upstream's default is one minute, the limit of the longest request.
	server.GenericAPIServer.ShutdownTimeout = apiShutdownLimit
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	s.server = server
	go func() {
		defer close(s.ended)
		// Run drains requests in flight before it returns; see apiShutdownLimit.
		s.err = prepared.Run(ctx)
	}()
	return nil
}

// loopbackConfig returns a copy of the server's own client configuration: privileged, and over TLS
// like any other. The caller may modify it.
func (s *apiServer) loopbackConfig() *rest.Config {
	return rest.CopyConfig(s.server.GenericAPIServer.LoopbackClientConfig)
}

// waitReady returns nil once /readyz is ok. Otherwise it returns ctx's error, or errEnded if the
// server has ended.
func (s *apiServer) waitReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.loopbackConfig())
	if err != nil {
		return err
	}

	// The check uses TLS and the server's own certificate, like any request.
	url := s.loopbackConfig().Host + "/readyz"
	return wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		select {
		// Without this case a server that failed to start would be polled forever.
		case <-s.ended:
			return false, errEnded
		default:
		}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		response, err := client.Do(request)
		if err != nil {
			return false, nil
		}
		response.Body.Close()
		s.ready = response.StatusCode == http.StatusOK
		return s.ready, nil
	})
}

// errEnded reports that the server has ended; apiServer.err has the reason.
var errEnded = errors.New("the API server ended")

// awaitStarted waits until the server can be stopped safely: stopping it while its hooks still run
// would end the process. A server that was ready once can always be stopped, even if it is too busy
// to report ready again. If awaitStarted returns false, the hooks may still run, and the server
// must be left running, with its listener, until the process exits. It waits for settleLimit at
// most.
func (s *apiServer) awaitStarted() bool {
	if s.ready {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	err := s.waitReady(ctx)
	return err == nil || err == errEnded
}

// readyPoll is short because it delays every startup by half an interval on average; a check costs
// microseconds.
const readyPoll = 10 * time.Millisecond

// apiServerOptions builds kube-apiserver's options from its flags, whose names are familiar to
// operators. The flags are set one by one, as a command line would, then completed and validated by
// upstream.
func apiServerOptions(o Options, d *dataDir, p *pki, e *etcd, l *net.TCPListener) (*apioptions.ServerRunOptions, error) {
	run := apioptions.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	// Upstream's flags write into run.
	for _, set := range run.Flags().FlagSets {
		flags.AddFlagSet(set)
	}

	// The order is irrelevant: flags are independent until they are completed.
	for name, value := range apiServerFlags(o, d, p) {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("--%s=%s: %w", name, value, err)
		}
	}

	// Set the options without a flag.
	run.SecureServing.Listener = l
	run.SecureServing.BindPort = portOf(l)
	run.Etcd.StorageConfig.Transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) {
		// Connect to this member regardless of the address.
		return func(ctx context.Context, _, _ string) (net.Conn, error) { return e.listener.DialContext(ctx) }, nil
	}
	installAdmission(run.Admission.GenericAdmission, o.admissionPlugins())
	return run, nil
}

// apiServerFlags returns kube-apiserver's flags by name; flags not listed keep upstream's default.
func apiServerFlags(o Options, d *dataDir, p *pki) map[string]string {
	flags := map[string]string{
		// The host name appears in logs only; dialMember makes the connection.
		"etcd-servers": "http://etcd.in.memory:2379",

		// The API listens on loopback only, and access is limited to the data directory's owner.
		// Pods on this machine connect through package relay (internal/up/relay).
		"bind-address":      "127.0.0.1",
		"advertise-address": "127.0.0.1",
		// Loopback addresses are invalid as endpoints of the Service "kubernetes", and a wrong
		// address would be worse than an empty list.
		"endpoint-reconciler-type": "none",
		"tls-cert-file":            p.pathOf(apiServerCert),
		"tls-private-key-file":     p.pathOf(apiServerKey),

		"client-ca-file":        p.pathOf(caCertFile),
		"authentication-config": d.pathOf(authenticationFile),
		// kubeadm uses the same value.
		"authorization-mode":          "Node,RBAC",
		"enable-bootstrap-token-auth": "true",
		"service-account-issuer":      "https://kubernetes.default.svc.cluster.local",
		// The key that signs and verifies is kept in the data directory, so tokens stay valid
		// across restarts.
		"service-account-key-file":         p.pathOf(tokenKeyFile),
		"service-account-signing-key-file": p.pathOf(tokenKeyFile),
		// Aggregated API servers use these to authenticate requests from this server and to learn
		// the requesting user.
		"requestheader-client-ca-file":       p.pathOf(frontProxyCertFile),
		"requestheader-allowed-names":        frontProxyUser,
		"requestheader-username-headers":     "X-Remote-User",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"proxy-client-cert-file":             p.pathOf(proxyClientCert),
		"proxy-client-key-file":              p.pathOf(proxyClientKey),

		// Requests for logs and exec on real nodes use this certificate.
		"kubelet-client-certificate": p.pathOf(kubeletClientCert),
		"kubelet-client-key":         p.pathOf(kubeletClientKey),
		// Hostnames of simulated nodes and of developers' machines do not resolve.
		"kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname,InternalDNS,ExternalDNS",

		// As in kubeadm: DaemonSets for storage and networking need it.
		"allow-privileged":         "true",
		"service-cluster-ip-range": o.ServiceClusterIPRange,
		// Service addresses are unreachable from this process; addresses of the pods behind them
		// are reachable when pods really run.
		"enable-aggregator-routing": "true",
		"enable-admission-plugins":  strings.Join(o.enabledAdmission(), ","),
		"disable-admission-plugins": strings.Join(o.DisableAdmission, ","),
		// These are process-wide variables upstream, so set them even when Berth's rules replace
		// upstream's plugin.
		"default-not-ready-toleration-seconds":   secondsFlag(o.Rules.NotReadySeconds),
		"default-unreachable-toleration-seconds": secondsFlag(o.Rules.UnreachableSeconds),

		"event-ttl":                      o.EventTTL.String(),
		"max-requests-inflight":          strconv.Itoa(maxRequestsInflight),
		"max-mutating-requests-inflight": strconv.Itoa(maxMutatingRequestsInflight),
		"profiling":                      strconv.FormatBool(o.Profiling),
	}
	if o.EtcdCompaction > 0 {
		flags["etcd-compaction-interval"] = o.EtcdCompaction.String()
	}
	if len(o.RuntimeConfig) > 0 {
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(o.RuntimeConfig)) {
			pairs = append(pairs, name+"="+o.RuntimeConfig[name])
		}
		flags["runtime-config"] = strings.Join(pairs, ",")
	}
	return flags
}

// secondsFlag formats a number of seconds as a flag; nil selects upstream's default.
func secondsFlag(seconds *int64) string {
	if seconds == nil {
		return "300"
	}
	return strconv.FormatInt(*seconds, 10)
}
