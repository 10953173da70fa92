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

// apiServer is upstream's, all three of it: core, extensions (CRDs) and aggregation.
type apiServer struct {
	config app.CompletedConfig
	server *aggregator.APIAggregator
	ended  chan struct{} // closed when the server ended, by itself or not
	err    error         // why; valid once ended is closed
	ready  bool          // it was ready once: its hooks are done. Written while it starts, read when it is stopped
}

const (
	// Clients are Berth's own, few and trusted; on two cores the CPU is the limit long before these
	// are.
	maxRequestsInflight, maxMutatingRequestsInflight = 1600, 800

	// How long open connections may keep the end of the server up. Watches are ended before.
	apiShutdownLimit = 2 * time.Second

	// How long a stop waits for a start that is under way; see settle. A start takes about a
	// second.
	settleLimit = 2 * time.Second

	authenticationFile = "authentication.yaml"
)

// anonymousHealth lets nobody in without credentials, except to ask how the server is.
const anonymousHealth = `apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
anonymous:
  enabled: true
  conditions:
  - path: /livez
  - path: /readyz
  - path: /healthz
`

// configureAPIServer does what needs no etcd yet, which is about half of the work.
func configureAPIServer(ctx context.Context, o Options, d *dataDir, p *pki, e *etcd, l *net.TCPListener) (*apiServer, error) {
	run, err := apiServerOptions(o, d, p, e, l)
	if err != nil {
		return nil, err
	}

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
	if err := replaceBootstrapHooks(config.KubeAPIs.ControlPlane.Generic); err != nil {
		return nil, err
	}

	complete, err := config.Complete()
	if err != nil {
		return nil, err
	}
	return &apiServer{config: complete, ended: make(chan struct{})}, nil
}

// startServer connects the server to etcd and runs it until ctx ends.
func (s *apiServer) startServer(ctx context.Context) error {
	server, err := app.CreateServerChain(s.config)
	if err != nil {
		return err
	}
	server.GenericAPIServer.ShutdownTimeout = apiShutdownLimit
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	s.server = server
	go func() {
		defer close(s.ended)
		s.err = prepared.Run(ctx)
	}()
	return nil
}

// loopbackConfig is the server's own client: privileged, over TLS like any other.
func (s *apiServer) loopbackConfig() *rest.Config {
	return rest.CopyConfig(s.server.GenericAPIServer.LoopbackClientConfig)
}

// waitReady returns once /readyz is ok.
func (s *apiServer) waitReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.loopbackConfig())
	if err != nil {
		return err
	}

	url := s.loopbackConfig().Host + "/readyz"
	return wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		select {
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

var errEnded = errors.New("the API server ended")

// awaitStarted waits until the server may be stopped: one that is stopped while its hooks still run
// takes the process with it. One that was ready once may always be, also when it is too busy to say
// so again. False: it did not get that far, and must be left, with its listener, to the end of the
// process.
func (s *apiServer) awaitStarted() bool {
	if s.ready {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleLimit)
	defer cancel()
	err := s.waitReady(ctx)
	return err == nil || err == errEnded
}

// readyPoll is short, since every start waits for half of it; the check costs microseconds.
const readyPoll = 10 * time.Millisecond

// apiServerOptions are kube-apiserver's, given as its flags: whoever runs Kubernetes knows them by
// these names.
func apiServerOptions(o Options, d *dataDir, p *pki, e *etcd, l *net.TCPListener) (*apioptions.ServerRunOptions, error) {
	run := apioptions.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range run.Flags().FlagSets {
		flags.AddFlagSet(set)
	}

	for name, value := range apiServerFlags(o, d, p) {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("--%s=%s: %w", name, value, err)
		}
	}

	run.SecureServing.Listener = l
	run.SecureServing.BindPort = portOf(l)
	run.Etcd.StorageConfig.Transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) {
		return e.dialMember, nil
	}
	installAdmission(run.Admission.GenericAdmission, o.admissionPlugins())
	return run, nil
}

func apiServerFlags(o Options, d *dataDir, p *pki) map[string]string {
	flags := map[string]string{
		// The name is for logs; the connection is e.dial's.
		"etcd-servers": "http://etcd.in.memory:2379",

		"bind-address":      "127.0.0.1",
		"advertise-address": "127.0.0.1",
		// Endpoints of the Service "kubernetes" cannot be loopback addresses; a wrong one would be
		// worse than none.
		"endpoint-reconciler-type": "none",
		"tls-cert-file":            p.pathOf(apiServerCert),
		"tls-private-key-file":     p.pathOf(apiServerKey),

		"client-ca-file":                     p.pathOf(caCertFile),
		"authentication-config":              d.pathOf(authenticationFile),
		"authorization-mode":                 "Node,RBAC",
		"enable-bootstrap-token-auth":        "true",
		"service-account-issuer":             "https://kubernetes.default.svc.cluster.local",
		"service-account-key-file":           p.pathOf(tokenKeyFile),
		"service-account-signing-key-file":   p.pathOf(tokenKeyFile),
		"requestheader-client-ca-file":       p.pathOf(frontProxyCertFile),
		"requestheader-allowed-names":        frontProxyUser,
		"requestheader-username-headers":     "X-Remote-User",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"proxy-client-cert-file":             p.pathOf(proxyClientCert),
		"proxy-client-key-file":              p.pathOf(proxyClientKey),

		"kubelet-client-certificate": p.pathOf(kubeletClientCert),
		"kubelet-client-key":         p.pathOf(kubeletClientKey),
		// Names of simulated nodes and of a developer's machine do not resolve.
		"kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname,InternalDNS,ExternalDNS",

		"allow-privileged":         "true",
		"service-cluster-ip-range": o.ServiceClusterIPRange,
		// No addresses of Services lead anywhere from this process; those of the pods behind them
		// do, where pods really run.
		"enable-aggregator-routing": "true",
		"enable-admission-plugins":  strings.Join(o.enabledAdmission(), ","),
		"disable-admission-plugins": strings.Join(o.DisableAdmission, ","),
		// Upstream keeps these once per process, so they are set even where Berth's rules stand for
		// its plugin.
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

func secondsFlag(seconds *int64) string {
	if seconds == nil {
		return "300"
	}
	return strconv.FormatInt(*seconds, 10)
}
