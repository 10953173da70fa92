// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"io"
	"slices"
	"strings"

	apiserver "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/server/options"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/berth-k8s/berth/controlplane/admissionplugin"
	"github.com/berth-k8s/berth/internal/admission"
)

// AdmissionPlugin is an admission plugin compiled into the API server. Name is unique among all
// plugins, upstream's included.
type AdmissionPlugin struct {
	Name string
	New  apiserver.Factory
	// Replaces names the upstream plugins to switch off; the plugin takes the position of the first
	// of them in the chain. If empty, the plugin runs just before the admission webhooks.
	Replaces []string
}

// berthAdmission returns Berth's admission plugins, which replace their upstream counterparts. The
// order is the registration order; the position in the chain follows from Replaces.
func berthAdmission(rules admission.Config) []AdmissionPlugin {
	plugin := func(name string, replaces []string, make func() apiserver.Interface) AdmissionPlugin {
		return AdmissionPlugin{Name: name, Replaces: replaces, New: func(io.Reader) (apiserver.Interface, error) { return make(), nil }}
	}
	return []AdmissionPlugin{
		plugin(admissionplugin.NodeName, admissionplugin.ReplacedByNode(), admissionplugin.NewNode),
		plugin(admissionplugin.PodName, admissionplugin.ReplacedByPod(),
			func() apiserver.Interface { return admissionplugin.NewPod(rules) }),
		plugin(admissionplugin.PriorityName, admissionplugin.ReplacedByPriority(), admissionplugin.NewPriority),
		plugin(admissionplugin.ReplicasName, nil, admissionplugin.NewReplicas),
		plugin(admissionplugin.BootstrapName, nil, admissionplugin.NewBootstrap),
	}
}

// admissionPlugins returns the compiled-in plugins other than upstream's. If UpstreamAdmission is
// set, Berth's plugins are omitted.
func (o Options) admissionPlugins() []AdmissionPlugin {
	if o.UpstreamAdmission {
		return o.Admission
	}
	return slices.Concat(berthAdmission(o.Rules), o.Admission)
}

// enabledAdmission returns the upstream plugins enabled in addition to upstream's defaults. Unless
// it is disabled, they include NodeRestriction, which keeps a node from modifying other nodes.
func (o Options) enabledAdmission() []string {
	const restriction = "NodeRestriction"
	// Skip it if it is disabled, and do not add it twice.
	if slices.Contains(o.DisableAdmission, restriction) || slices.Contains(o.EnableAdmission, restriction) {
		return o.EnableAdmission
	}
	return append([]string{restriction}, o.EnableAdmission...)
}

// validateAdmission rejects unknown upstream plugin names and negative seconds.
func (o Options) validateAdmission() error {
	for _, list := range []struct {
		flag  string
		names []string
	}{{"enable-admission-plugins", o.EnableAdmission}, {"disable-admission-plugins", o.DisableAdmission}} {
		for _, name := range list.names {
			if !slices.Contains(kubeoptions.AllOrderedPlugins, name) {
				return fmt.Errorf("--%s: %q: unknown plugin; known plugins: %s", list.flag, name,
					strings.Join(kubeoptions.AllOrderedPlugins, ", "))
			}
		}
	}

	for _, of := range []struct {
		state   string
		seconds *int64
	}{{"not-ready", o.Rules.NotReadySeconds}, {"unreachable", o.Rules.UnreachableSeconds}} {
		if of.seconds != nil && *of.seconds < 0 {
			return fmt.Errorf("--default-%s-toleration-seconds: %d: must be zero or more", of.state, *of.seconds)
		}
	}

	return nil
}

// installAdmission registers plugins, places each at the position of the first plugin it replaces,
// and disables the replaced ones.
//
// For example, BerthNode is placed before TaintNodesByCondition, which is disabled.
func installAdmission(chain *options.AdmissionOptions, plugins []AdmissionPlugin) {
	// The list is a package variable of upstream's and must not be modified.
	order := slices.Clone(chain.RecommendedPluginOrder)
	for _, plugin := range plugins {
		chain.Plugins.Register(plugin.Name, plugin.New)
		at := slices.IndexFunc(order, func(name string) bool { return slices.Contains(plugin.Replaces, name) })
		// A plugin without Replaces precedes the first plugin that calls out of the process.
		if at < 0 {
			at = slices.Index(order, "MutatingAdmissionPolicy")
		}
		order = slices.Insert(order, at, plugin.Name)
		chain.DisablePlugins = append(chain.DisablePlugins, plugin.Replaces...)
		// Upstream rejects a plugin that is both enabled and disabled.
		chain.EnablePlugins = slices.DeleteFunc(chain.EnablePlugins, func(name string) bool {
			return slices.Contains(plugin.Replaces, name)
		})
	}
	chain.RecommendedPluginOrder = order
}
