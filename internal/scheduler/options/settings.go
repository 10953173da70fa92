// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	componentbase "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// Settings holds the settings fixed for the life of the scheduler. Flags take precedence over the
// file.
type Settings struct {
	Lead    lead.Options
	Cluster connect.Flags
	// The content types of requests to the API server.
	ContentType, Accept string
	QPS                 float32 // 0: no limit
	Burst               int

	// The back-off of pods after failed attempts.
	FirstBackoff, LastBackoff time.Duration

	// PlainProfiling enables profiling on the port without authentication. Only the flag sets it,
	// because the file's default for profiling is true.
	Profiling, PlainProfiling, ContentionProfiling bool
}

// head holds the fields needed before the whole file can be parsed, and the fields that parsing
// drops.
type head struct {
	ClientConnection          componentbase.ClientConnectionConfiguration `json:"clientConnection"`
	EnableContentionProfiling bool                                        `json:"enableContentionProfiling"`
}

// Settings returns the settings from the flags and the configuration read from data. An error
// concerns the file's leader election; flags have been validated.
func (f *Flags) Settings(c *config.Config, data []byte) (Settings, error) {
	s := f.Connection(data)
	s.Lead = election(&c.Spec.LeaderElection)
	s.FirstBackoff = seconds(ptr.Deref(c.Spec.PodInitialBackoffSeconds, 1))
	s.LastBackoff = seconds(ptr.Deref(c.Spec.PodMaxBackoffSeconds, 10))
	s.Profiling = ptr.Deref(c.Spec.EnableProfiling, true)
	s.ContentionProfiling = headOf(data).EnableContentionProfiling
	f.override(&s)
	if err := s.Lead.Validate(); err != nil {
		return s, fmt.Errorf("leaderElection: %w", err)
	}
	return s, nil
}

// seconds returns n seconds, or the longest Duration: a back-off of more than 292 years must not
// overflow into a negative one.
func seconds(n int64) time.Duration {
	const most = math.MaxInt64 / time.Second
	if n > int64(most) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Second
}

// Connection returns only the settings for the connection to the cluster. It does not depend on the
// rest of the data: a plugin enabled by the file may use the cluster when it is created, during
// parsing.
func (f *Flags) Connection(data []byte) Settings {
	client := headOf(data).ClientConnection
	s := Settings{Cluster: f.cluster, ContentType: client.ContentType, Accept: client.AcceptContentTypes,
		QPS: client.QPS, Burst: int(client.Burst)}
	if !f.given("kubeconfig") {
		s.Cluster.Kubeconfig = client.Kubeconfig
	}

	s.ContentType = cmp.Or(s.ContentType, runtime.ContentTypeProtobuf)
	f.override(&s)
	if s.Accept == "" {
		s.Accept = s.ContentType
		if s.ContentType != runtime.ContentTypeJSON {
			s.Accept += "," + runtime.ContentTypeJSON
		}
	}

	if s.QPS > 0 && s.Burst == 0 {
		s.Burst = max(1, int(2*s.QPS))
	}
	return s
}

// headOf reads the head of a file; it is zero if the file is unreadable.
func headOf(data []byte) (h head) {
	_ = yaml.Unmarshal(data, &h) // a bad file is reported when it is parsed
	return h
}

// election returns the file's options for leader election. Parsing has set upstream's defaults.
func election(e *componentbase.LeaderElectionConfiguration) lead.Options {
	return lead.Options{
		Elect:         ptr.Deref(e.LeaderElect, true),
		LeaseDuration: e.LeaseDuration.Duration, RenewDeadline: e.RenewDeadline.Duration, RetryPeriod: e.RetryPeriod.Duration,
		Namespace: e.ResourceNamespace, Name: e.ResourceName,
	}
}

// ElectionGiven reports whether a flag configures the election, other than the one enabling it.
func (f *Flags) ElectionGiven() bool {
	fields := []string{"lease-duration", "renew-deadline", "retry-period", "resource-name", "resource-namespace"}
	return slices.ContainsFunc(fields, func(name string) bool { return f.given("leader-elect-" + name) })
}

// override applies the given flags over the file. It is called twice, by Connection and by
// Settings, with the same effect.
func (f *Flags) override(s *Settings) {
	for name, set := range map[string]func(){
		"leader-elect":                    func() { s.Lead.Elect = f.lead.Elect },
		"leader-elect-lease-duration":     func() { s.Lead.LeaseDuration = f.lead.LeaseDuration },
		"leader-elect-renew-deadline":     func() { s.Lead.RenewDeadline = f.lead.RenewDeadline },
		"leader-elect-retry-period":       func() { s.Lead.RetryPeriod = f.lead.RetryPeriod },
		"leader-elect-resource-name":      func() { s.Lead.Name = f.lead.Name },
		"leader-elect-resource-namespace": func() { s.Lead.Namespace = f.lead.Namespace },
		"kube-api-qps":                    func() { s.QPS = f.qps },
		"kube-api-burst":                  func() { s.Burst = f.burst },
		"kube-api-content-type":           func() { s.ContentType = f.contentType },
		"profiling":                       func() { s.Profiling, s.PlainProfiling = f.profiling, f.profiling },
		"contention-profiling":            func() { s.ContentionProfiling = f.contentionProfiling },
	} {
		if f.given(name) {
			set()
		}
	}

	// The new name of a flag takes precedence over the old one.
	if old := f.legacy.lockName; old != "" && !f.given("leader-elect-resource-name") {
		s.Lead.Name = old
	}
	if old := f.legacy.lockNamespace; old != "" && !f.given("leader-elect-resource-namespace") {
		s.Lead.Namespace = old
	}
}

// Rest returns the client configuration for the cluster. The request rate is unlimited unless a
// limit is configured, because the number of requests in flight bounds the load on the API server.
// kube-scheduler has 50 requests per second by default.
func (s *Settings) Rest(userAgent string) (*rest.Config, error) {
	c, err := s.Cluster.Config(userAgent)
	if err != nil {
		return nil, err
	}
	c.ContentType, c.AcceptContentTypes = s.ContentType, s.Accept
	c.QPS, c.Burst = -1, 0
	if s.QPS > 0 {
		c.QPS, c.Burst = s.QPS, s.Burst
	}
	// Like kube-scheduler and kube-controller-manager.
	c.DisableCompression = true
	return c, nil
}

// Election returns the configuration of the client for leader election. The request rate is
// unlimited, because a renewal must not wait for other requests. The managed fields of the Lease
// name berth-scheduler, even if the program has another name, such as a build with out-of-tree
// plugins: other components use that to identify the leading scheduler.
func (s *Settings) Election() (*rest.Config, error) {
	c, err := s.Rest("leader-election")
	if err != nil {
		return nil, err
	}
	c.QPS, c.Burst = -1, 0
	c.UserAgent = "berth-scheduler/" + c.UserAgent
	return c, nil
}

// Changed returns the fields, by their names in the file, in which a changed file requires a
// restart. Everything else takes effect without a restart.
func (s *Settings) Changed(to Settings) (fields []string) {
	for _, f := range []struct {
		name    string
		changed bool
	}{
		{"leaderElection", s.Lead != to.Lead},
		{"clientConnection", s.Cluster != to.Cluster || s.ContentType != to.ContentType || s.Accept != to.Accept ||
			s.QPS != to.QPS || s.Burst != to.Burst},
		{"podInitialBackoffSeconds", s.FirstBackoff != to.FirstBackoff},
		{"podMaxBackoffSeconds", s.LastBackoff != to.LastBackoff},
		{"enableProfiling", s.Profiling != to.Profiling},
		{"enableContentionProfiling", s.ContentionProfiling != to.ContentionProfiling},
	} {
		if f.changed {
			fields = append(fields, f.name)
		}
	}
	return fields
}

// Notes reports the given flags without an effect.
func (f *Flags) Notes() []string { return append(f.ignoredNotes(), f.gateNotes()...) }

// Full returns a copy of the configuration in effect, including defaults and overrides by flags.
// /configz shows it and --write-config-to writes it.
func (s *Settings) Full(c *config.Config) *configv1.KubeSchedulerConfiguration {
	full := c.Spec.DeepCopy()
	full.APIVersion, full.Kind = configv1.SchemeGroupVersion.String(), "KubeSchedulerConfiguration"
	e := &full.LeaderElection
	e.LeaderElect = &s.Lead.Elect
	e.LeaseDuration, e.RenewDeadline = metav1.Duration{Duration: s.Lead.LeaseDuration}, metav1.Duration{Duration: s.Lead.RenewDeadline}
	e.RetryPeriod = metav1.Duration{Duration: s.Lead.RetryPeriod}
	e.ResourceNamespace, e.ResourceName = s.Lead.Namespace, s.Lead.Name
	full.ClientConnection = componentbase.ClientConnectionConfiguration{
		Kubeconfig: s.Cluster.Kubeconfig, ContentType: s.ContentType, AcceptContentTypes: s.Accept, QPS: s.QPS, Burst: int32(s.Burst),
	}

	full.EnableProfiling, full.EnableContentionProfiling = &s.Profiling, &s.ContentionProfiling
	for i := range full.Profiles {
		for j := range full.Profiles[i].PluginConfig {
			if args := &full.Profiles[i].PluginConfig[j].Args; args.Object != nil {
				kind := full.Profiles[i].PluginConfig[j].Name + "Args"
				args.Object.GetObjectKind().SetGroupVersionKind(configv1.SchemeGroupVersion.WithKind(kind))
				args.Raw = nil // the raw content of the file, without defaults
			}
		}
	}
	return full
}

// YAML prints a configuration as a file accepted by --config.
func YAML(c *configv1.KubeSchedulerConfiguration) ([]byte, error) {
	encoded, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(encoded)
}
