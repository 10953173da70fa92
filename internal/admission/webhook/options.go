// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/clock"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/admission/evictionguard"
)

// Options are the command's flags. DefaultOptions sets all of them. Replicas of one webhook should
// have the same options, because they write the same objects.
type Options struct {
	Address string // of the webhook, HTTPS; port 0 picks a free one
	Health  string // of the health and metrics endpoints, plain HTTP; "" disables them

	// ClientCAFile has the CAs of the client certificates required of callers; "" accepts all
	// callers. API servers present a client certificate only if configured by their
	// --admission-control-config-file.
	ClientCAFile string

	// Namespace holds the Secret with the certificates and the Service. Pods in it bypass the
	// webhook.
	Namespace string
	Service   string // also the name of the Secret, the configurations and the ClusterRole
	// AdvertiseHost is the host at which API servers call the webhook, at the port of Address, if
	// they do not use the Service. It is for a webhook outside the cluster.
	AdvertiseHost string

	// Register enables writing the webhook configurations. Otherwise, the webhook only adds the CA
	// to existing configurations.
	Register bool
	// FailurePolicy decides whether a pod is stored if no replica responds.
	FailurePolicy string
	// Timeout is the API server's timeout, in whole seconds.
	Timeout time.Duration
	// ExcludeNamespaces lists further namespaces that bypass the webhook.
	ExcludeNamespaces []string

	// CertificateLifetime is the lifetime of the serving certificate.
	CertificateLifetime time.Duration
	// ShutdownDelay is the time to keep serving after the webhook has become unready, so that API
	// servers first stop calling it.
	ShutdownDelay time.Duration

	// GuardEvictions holds evictions until the controller eviction-guard has started a replacement.
	GuardEvictions bool
	Guard          evictionguard.Options

	// ApplyRules applies the rules to pods, nodes and priority classes. It is off only in a cluster
	// whose API server applies them.
	ApplyRules bool
	Rules      admission.Config // New sets AfterAPIServer in it
	// Clock is for tests; nil is the real clock.
	Clock clock.WithTicker
}

// DefaultOptions returns the defaults of the flags. They ensure that the webhook cannot stop a
// cluster: pods are created without the rules if it does not respond within 2 s, and kube-system
// never waits for it.
func DefaultOptions() Options {
	return Options{
		Address:             "0.0.0.0:9443",
		Health:              "127.0.0.1:10360",
		Namespace:           "berth-system",
		Service:             "berth-webhook",
		Register:            true,
		ApplyRules:          true,
		FailurePolicy:       string(admissionregistrationv1.Ignore),
		Timeout:             2 * time.Second,
		ExcludeNamespaces:   []string{"kube-system", "kube-node-lease"},
		CertificateLifetime: 90 * 24 * time.Hour,
		ShutdownDelay:       5 * time.Second,
		Guard:               evictionguard.DefaultOptions(),
		Rules:               admission.Config{NotReadySeconds: new(int64(300)), UnreachableSeconds: new(int64(300))},
	}
}

// AddFlags adds the flags, with o as defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.Address, "bind-address", o.Address, "address of the webhook, HTTPS; port 0 picks a free one")
	flags.StringVar(&o.Health, "health-bind-address", o.Health,
		"address of /healthz, /livez, /readyz and /metrics, plain HTTP; port 0 picks a free one, empty disables it")
	flags.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile,
		"CA bundle for client certificates, which are then required; API servers present one if their "+
			"--admission-control-config-file names it (default: unauthenticated)")
	flags.StringVarP(&o.Namespace, "namespace", "n", o.Namespace,
		"namespace of the webhook's Service and of the Secret with its certificates; the rules do not apply to its pods")

	flags.StringVar(&o.Service, "service", o.Service, "name of the Service, of the Secret and of the webhook configurations")
	flags.StringVar(&o.AdvertiseHost, "advertise-host", o.AdvertiseHost,
		"host name or IP address at which API servers reach the webhook outside the cluster, instead of the Service")
	flags.BoolVar(&o.Register, "register", o.Register, "create the webhook configurations; if false, only update the CA in existing ones")
	flags.StringVar(&o.FailurePolicy, "failure-policy", o.FailurePolicy,
		"what happens to a pod if the webhook does not answer: Ignore creates it without the rules, Fail refuses it")
	flags.DurationVar(&o.Timeout, "timeout", o.Timeout, "how long an API server waits for the webhook, 1s to 30s")
	flags.StringSliceVar(&o.ExcludeNamespaces, "exclude-namespaces", o.ExcludeNamespaces, "namespaces whose pods the rules do not apply to")

	flags.DurationVar(&o.CertificateLifetime, "certificate-lifetime", o.CertificateLifetime,
		"lifetime of the serving certificate; it is renewed after two thirds of it")
	flags.DurationVar(&o.ShutdownDelay, "shutdown-delay", o.ShutdownDelay,
		"how long to keep serving after SIGTERM, as not ready, until API servers stop calling this replica")
	flags.BoolVar(&o.ApplyRules, "rules", o.ApplyRules,
		"apply the admission rules; if false, only guard evictions, for a cluster whose API server has the rules built in")
	flags.BoolVar(&o.GuardEvictions, "guard-evictions", o.GuardEvictions,
		"hold evictions of pods of Deployments and ReplicaSets until a replacement is ready; requires a berth controller with "+
			"--controllers=*,eviction-guard, and permission to get and patch pods")
	o.Guard.AddFlags(flags)
	flags.Int64Var(o.Rules.NotReadySeconds, "default-not-ready-toleration-seconds", *o.Rules.NotReadySeconds,
		"tolerationSeconds for not-ready nodes of pods that set none")
	flags.Int64Var(o.Rules.UnreachableSeconds, "default-unreachable-toleration-seconds", *o.Rules.UnreachableSeconds,
		"tolerationSeconds for unreachable nodes of pods that set none")
}

// shortestLifetime leaves enough time to renew, regardless of clock skew.
const shortestLifetime = 10 * time.Second

// Validate returns an error for the first invalid option. The error names its flag.
func (o *Options) Validate() error {
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return fmt.Errorf("--bind-address: %q: must be address:port", o.Address)
	}
	if o.Namespace == "" || o.Service == "" {
		return fmt.Errorf("--namespace and --service: must not be empty")
	}

	switch admissionregistrationv1.FailurePolicyType(o.FailurePolicy) {
	case admissionregistrationv1.Ignore, admissionregistrationv1.Fail:
	default:
		return fmt.Errorf("--failure-policy: %q: must be Ignore or Fail", o.FailurePolicy)
	}

	if o.Timeout < time.Second || o.Timeout > 30*time.Second || o.Timeout%time.Second != 0 {
		return fmt.Errorf("--timeout: %v: must be whole seconds, 1s to 30s", o.Timeout)
	}
	if o.CertificateLifetime < shortestLifetime {
		return fmt.Errorf("--certificate-lifetime: %v: must be at least %v", o.CertificateLifetime, shortestLifetime)
	}
	if o.ShutdownDelay < 0 {
		return fmt.Errorf("--shutdown-delay: %v: must not be negative", o.ShutdownDelay)
	}

	if !o.ApplyRules && !o.GuardEvictions {
		return fmt.Errorf("--rules=false: requires --guard-evictions")
	}
	if err := o.Guard.Validate(); err != nil {
		return err
	}

	if n := o.Rules.NotReadySeconds; n != nil && *n < 0 {
		return fmt.Errorf("--default-not-ready-toleration-seconds: %d: must be zero or more", *n)
	}
	if u := o.Rules.UnreachableSeconds; u != nil && *u < 0 {
		return fmt.Errorf("--default-unreachable-toleration-seconds: %d: must be zero or more", *u)
	}
	return nil
}

// dnsNames returns the names for the certificate: the Service's names used by API servers, and the
// advertised host, which may be an address.
func (o *Options) dnsNames() []string {
	names := []string{
		o.Service + "." + o.Namespace + ".svc",
		o.Service + "." + o.Namespace + ".svc.cluster.local",
	}
	if o.AdvertiseHost != "" {
		names = append(names, o.AdvertiseHost)
	}
	return names
}
