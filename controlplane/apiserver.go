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

// apiServer is upstream's, all three of it: core, extensions (CRDs) and aggregation. It is
// configured (configureAPIServer), then started (startServer), and ends with the context that it
// was started with.
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

	// How long a stop waits for a start that is under way; see awaitStarted. A start takes about
	// a second.
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

// configureAPIServer does what needs no etcd yet, which is about half of the work. The listener is
// bound already, and becomes the server's.
func configureAPIServer(ctx context.Context, o Options, d *dataDir, p *pki, e *etcd, l *net.TCPListener) (*apiServer, error) {
	run, err := apiServerOptions(o, d, p, e, l)
	if err != nil {
		return nil, err
	}

	// Upstream fills in what flags leave open, such as the external address.
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
	// Before the configuration is completed, which fixes the hooks.
	if err := replaceBootstrapHooks(config.KubeAPIs.ControlPlane.Generic); err != nil {
		return nil, err
	}

	complete, err := config.Complete()
	if err != nil {
		return nil, err
	}
	return &apiServer{config: complete, ended: make(chan struct{})}, nil
}

// startServer connects the server to etcd and runs it until ctx ends. An error means that nothing
// runs. It returns before the server is ready.
func (s *apiServer) startServer(ctx context.Context) error {
	// Here the server first reads from etcd.
	server, err := app.CreateServerChain(s.config)
	if err != nil {
		return err
	}
	// Upstream waits for a minute, as long as the longest request.
	server.GenericAPIServer.ShutdownTimeout = apiShutdownLimit
	prepared, err := server.PrepareRun()
	if err != nil {
		return err
	}
	s.server = server
	go func() {
		defer close(s.ended)
		// It ends the requests under way first; see apiShutdownLimit.
		s.err = prepared.Run(ctx)
	}()
	return nil
}

// loopbackConfig is the server's own client: privileged, over TLS like any other. It is a copy, and
// may be changed.
func (s *apiServer) loopbackConfig() *rest.Config {
	return rest.CopyConfig(s.server.GenericAPIServer.LoopbackClientConfig)
}

// waitReady returns once /readyz is ok. The error is that of ctx, or errEnded.
func (s *apiServer) waitReady(ctx context.Context) error {
	client, err := rest.HTTPClientFor(s.loopbackConfig())
	if err != nil {
		return err
	}

	// Over TLS and with the server's own certificate, like any request.
	url := s.loopbackConfig().Host + "/readyz"
	return wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		select {
		// Otherwise a server that has failed to start would be asked for ever.
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

// errEnded says that there is no use in waiting; apiServer.err says why it ended.
var errEnded = errors.New("the API server ended")

// awaitStarted waits until the server may be stopped: one that is stopped while its hooks still run
// takes the process with it. One that was ready once may always be, also when it is too busy to say
// so again. False: it did not get that far, and must be left, with its listener, to the end of the
// process. It waits for settleLimit at most.
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
// these names. They are set one by one, as the command line would, and then completed and validated
// by upstream.
func apiServerOptions(o Options, d *dataDir, p *pki, e *etcd, l *net.TCPListener) (*apioptions.ServerRunOptions, error) {
	run := apioptions.NewServerRunOptions()
	flags := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	// Upstream's flags write into run.
	for _, set := range run.Flags().FlagSets {
		flags.AddFlagSet(set)
	}

	// In any order: flags do not depend on each other before they are completed.
	for name, value := range apiServerFlags(o, d, p) {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("--%s=%s: %w", name, value, err)
		}
	}

	// What no flag can say.
	run.SecureServing.Listener = l
	run.SecureServing.BindPort = portOf(l)
	run.Etcd.StorageConfig.Transport.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) {
		return e.dialMember, nil
	}
	installAdmission(run.Admission.GenericAdmission, o.admissionPlugins())
	return run, nil
}

// apiServerFlags are the flags of kube-apiserver by name; a flag that is not listed has upstream's
// default.
func apiServerFlags(o Options, d *dataDir, p *pki) map[string]string {
	flags := map[string]string{
		// The name is for logs; the connection is made by dialMember.
		"etcd-servers": "http://etcd.in.memory:2379",

		// Loopback only: the data directory's owner is who may use the cluster. Pods on this
		// machine come through package door.
		"bind-address":      "127.0.0.1",
		"advertise-address": "127.0.0.1",
		// Endpoints of the Service "kubernetes" cannot be loopback addresses; a wrong one would be
		// worse than none.
		"endpoint-reconciler-type": "none",
		"tls-cert-file":            p.pathOf(apiServerCert),
		"tls-private-key-file":     p.pathOf(apiServerKey),

		"client-ca-file":        p.pathOf(caCertFile),
		"authentication-config": d.pathOf(authenticationFile),
		// As kubeadm has it.
		"authorization-mode":          "Node,RBAC",
		"enable-bootstrap-token-auth": "true",
		"service-account-issuer":      "https://kubernetes.default.svc.cluster.local",
		// One key signs and verifies: tokens stay valid over restarts.
		"service-account-key-file":         p.pathOf(tokenKeyFile),
		"service-account-signing-key-file": p.pathOf(tokenKeyFile),
		// How aggregated API servers know that a request comes from this one, and for whom.
		"requestheader-client-ca-file":       p.pathOf(frontProxyCertFile),
		"requestheader-allowed-names":        frontProxyUser,
		"requestheader-username-headers":     "X-Remote-User",
		"requestheader-group-headers":        "X-Remote-Group",
		"requestheader-extra-headers-prefix": "X-Remote-Extra-",
		"proxy-client-cert-file":             p.pathOf(proxyClientCert),
		"proxy-client-key-file":              p.pathOf(proxyClientKey),

		// For logs and exec, where nodes are real.
		"kubelet-client-certificate": p.pathOf(kubeletClientCert),
		"kubelet-client-key":         p.pathOf(kubeletClientKey),
		// Names of simulated nodes and of a developer's machine do not resolve.
		"kubelet-preferred-address-types": "InternalIP,ExternalIP,Hostname,InternalDNS,ExternalDNS",

		// As kubeadm has it: DaemonSets of storage and network need it.
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

// secondsFlag is a number of seconds; nil is upstream's default.
func secondsFlag(seconds *int64) string {
	if seconds == nil {
		return "300"
	}
	return strconv.FormatInt(*seconds, 10)
}
