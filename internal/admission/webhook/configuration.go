// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
)

// OptOutLabel on a namespace, with the value disabled, exempts its pods from the webhook. The label
// takes effect even while the webhook is down.
const OptOutLabel = "berth.dev/webhook"

// The webhooks' names in a configuration, and in the API server's messages and metrics.
const (
	podsName            = "pods.admission.berth.dev"
	nodesName           = "nodes.admission.berth.dev"
	priorityClassesName = "priorityclasses.admission.berth.dev"
	nameSuffix          = ".admission.berth.dev"
)

const (
	// The paths are part of the configurations read by API servers.
	mutatePath   = "/mutate"
	validatePath = "/validate"
	evictPath    = "/evict"
)

// nodeTimeout is in seconds, the minimum of the API: a node that registers or is tainted must not
// wait for an absent webhook.
const nodeTimeout = 1

// evictionTimeout is in seconds. An eviction is admitted if no replica answers in time.
const evictionTimeout = 5

var (
	createAndUpdate = []v1.OperationType{v1.Create, v1.Update}

	// Terminating pods, and the removal of their finalizers, bypass the webhook.
	staying = v1.MatchCondition{Name: "staying", Expression: `request.operation == "CREATE" || !has(object.metadata.deletionTimestamp)`}
	// Node updates are frequent; few have a taint without a time.
	taintWithoutTime = v1.MatchCondition{Name: "taint-without-time", Expression: `request.operation == "CREATE" ||
(has(object.spec.taints) && object.spec.taints.exists(t, t.effect == "NoExecute" && !has(t.timeAdded)))`}
	isDefault = v1.MatchCondition{Name: "is-default", Expression: `has(object.globalDefault) && object.globalDefault`}
)

// mutatingConfig returns the intended configuration. It sets all fields that the API server would
// default, so that it can be compared with the stored configuration.
//
// Pods follow the failure policy of the options. Nodes always pass if no replica responds: nodes
// must be able to join a cluster without the webhook.
func (o *Options) mutatingConfig(port int, bundle []byte) *v1.MutatingWebhookConfiguration {
	pods, nodes := v1.MutatingWebhook{
		Name: podsName, Rules: ruleFor("", "pods", v1.NamespacedScope), FailurePolicy: new(v1.FailurePolicyType(o.FailurePolicy)),
		NamespaceSelector: o.namespaceSelector(), TimeoutSeconds: o.timeoutSeconds(), MatchConditions: []v1.MatchCondition{staying},
	}, v1.MutatingWebhook{
		Name: nodesName, Rules: ruleFor("", "nodes", v1.ClusterScope), FailurePolicy: new(v1.Ignore),
		NamespaceSelector: &metav1.LabelSelector{}, TimeoutSeconds: new(int32(nodeTimeout)),
		MatchConditions: []v1.MatchCondition{taintWithoutTime},
	}
	configuration := &v1.MutatingWebhookConfiguration{ObjectMeta: o.objectMeta(nil), Webhooks: []v1.MutatingWebhook{pods, nodes}}
	if !o.ApplyRules {
		configuration.Webhooks = []v1.MutatingWebhook{}
	}
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		w.ClientConfig = o.clientConfig(mutatePath, port, bundle)
		w.AdmissionReviewVersions, w.SideEffects, w.MatchPolicy = []string{"v1"}, new(v1.SideEffectClassNone), new(v1.Equivalent)
		w.ObjectSelector = &metav1.LabelSelector{}
		// The webhook also processes additions by later webhooks.
		w.ReinvocationPolicy = new(v1.IfNeededReinvocationPolicy)
	}
	return configuration
}

// validatingConfig is mutatingConfig for the rules that only refuse. They run after all mutating
// webhooks, so they see all changes.
func (o *Options) validatingConfig(port int, bundle []byte) *v1.ValidatingWebhookConfiguration {
	pods, classes := v1.ValidatingWebhook{
		Name: podsName, Rules: ruleFor("", "pods", v1.NamespacedScope), FailurePolicy: new(v1.FailurePolicyType(o.FailurePolicy)),
		NamespaceSelector: o.namespaceSelector(), TimeoutSeconds: o.timeoutSeconds(), MatchConditions: []v1.MatchCondition{staying},
	}, v1.ValidatingWebhook{
		Name: priorityClassesName, Rules: ruleFor("scheduling.k8s.io", "priorityclasses", v1.ClusterScope), FailurePolicy: new(v1.Ignore),
		NamespaceSelector: &metav1.LabelSelector{}, TimeoutSeconds: o.timeoutSeconds(), MatchConditions: []v1.MatchCondition{isDefault},
	}
	configuration := &v1.ValidatingWebhookConfiguration{ObjectMeta: o.objectMeta(nil), Webhooks: []v1.ValidatingWebhook{pods, classes}}
	if !o.ApplyRules {
		configuration.Webhooks = nil
	}

	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		w.ClientConfig = o.clientConfig(validatePath, port, bundle)
		w.AdmissionReviewVersions, w.SideEffects, w.MatchPolicy = []string{"v1"}, new(v1.SideEffectClassNone), new(v1.Equivalent)
		w.ObjectSelector = &metav1.LabelSelector{}
	}
	if o.GuardEvictions {
		rules := ruleFor("", "pods/eviction", v1.NamespacedScope)
		rules[0].Operations = []v1.OperationType{v1.Create}
		configuration.Webhooks = append(configuration.Webhooks, v1.ValidatingWebhook{
			Name: evictionguard.WebhookName, Rules: rules, FailurePolicy: new(v1.Ignore), NamespaceSelector: o.namespaceSelector(),
			TimeoutSeconds: new(int32(evictionTimeout)), ClientConfig: o.clientConfig(evictPath, port, bundle),
			AdmissionReviewVersions: []string{"v1"}, SideEffects: new(v1.SideEffectClassNoneOnDryRun), MatchPolicy: new(v1.Equivalent),
			ObjectSelector: &metav1.LabelSelector{},
		})
	}
	return configuration
}

// objectMeta returns the metadata of every object created by the webhook: the same name, and the
// labels of the installation.
func (o *Options) objectMeta(owners []metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.Service, OwnerReferences: owners, Labels: map[string]string{
		"app.kubernetes.io/name": "berth", "app.kubernetes.io/component": "webhook", "app.kubernetes.io/part-of": "berth",
	}}
}

// ruleFor matches creations and updates of a resource, but not of its subresources, such as the
// status written by kubelets.
func ruleFor(group, resource string, scope v1.ScopeType) []v1.RuleWithOperations {
	return []v1.RuleWithOperations{{
		Operations: createAndUpdate,
		Rule:       v1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}, Scope: &scope},
	}}
}

// timeoutSeconds returns the API server's timeout.
func (o *Options) timeoutSeconds() *int32 { return new(int32(o.Timeout.Seconds())) }

// namespaceSelector excludes the namespaces required to start a cluster, the webhook's own
// namespace, and namespaces that opted out. The API server evaluates it before the call, so such
// namespaces do not depend on the webhook at all.
func (o *Options) namespaceSelector() *metav1.LabelSelector {
	excluded := append(slices.Clone(o.ExcludeNamespaces), o.Namespace)
	slices.Sort(excluded)
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: slices.Compact(excluded)},
		{Key: OptOutLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"disabled"}},
	}}
}

// clientConfig gives API servers the address of the webhook and the certificates to accept: through
// the Service, or by a URL if the webhook runs outside the cluster.
func (o *Options) clientConfig(path string, port int, bundle []byte) v1.WebhookClientConfig {
	if o.AdvertiseHost != "" {
		return v1.WebhookClientConfig{URL: new(fmt.Sprintf("https://%s%s",
			net.JoinHostPort(o.AdvertiseHost, strconv.Itoa(port)), path)), CABundle: bundle}
	}
	return v1.WebhookClientConfig{CABundle: bundle, Service: &v1.ServiceReference{
		Namespace: o.Namespace, Name: o.Service, Path: &path, Port: new(int32(443)),
	}}
}

// isOurs reports whether a webhook in a configuration belongs to Berth. Webhooks added by an
// administrator stay unchanged.
func isOurs(webhook string) bool { return strings.HasSuffix(webhook, nameSuffix) }
