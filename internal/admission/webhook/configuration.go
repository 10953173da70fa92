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
)

// OptOutLabel on a namespace, with the value disabled, keeps the webhook away from its pods: a way
// out that works without Berth.
const OptOutLabel = "berth.dev/webhook"

// The webhooks' names: within a configuration, and in the API server's messages
// and metrics.
const (
	podsName            = "pods.admission.berth.dev"
	nodesName           = "nodes.admission.berth.dev"
	priorityClassesName = "priorityclasses.admission.berth.dev"
	nameSuffix          = ".admission.berth.dev"
)

const (
	// The paths are in the configurations that API servers are given.
	mutatePath   = "/mutate"
	validatePath = "/validate"
)

// nodeTimeout is in seconds, the least that the API takes: a node that registers or is tainted must
// not wait for a webhook that is not there.
const nodeTimeout = 1

var (
	createAndUpdate = []v1.OperationType{v1.Create, v1.Update}

	// A pod that is leaving is let go, as are its finalizers.
	staying = v1.MatchCondition{Name: "staying", Expression: `request.operation == "CREATE" || !has(object.metadata.deletionTimestamp)`}
	// Node updates are many; few have a taint whose time is to be noted.
	taintWithoutTime = v1.MatchCondition{Name: "taint-without-time", Expression: `request.operation == "CREATE" ||
(has(object.spec.taints) && object.spec.taints.exists(t, t.effect == "NoExecute" && !has(t.timeAdded)))`}
	isDefault = v1.MatchCondition{Name: "is-default", Expression: `has(object.globalDefault) && object.globalDefault`}
)

// mutatingConfig is the configuration as it should be. All fields are set that the API server would
// default, so that it can be compared with what is stored.
//
// Pods follow the failure policy of the options. Nodes are always let through if no replica
// answers: no cluster must depend on the webhook to get nodes.
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
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		w.ClientConfig = o.clientConfig(mutatePath, port, bundle)
		w.AdmissionReviewVersions, w.SideEffects, w.MatchPolicy = []string{"v1"}, new(v1.SideEffectClassNone), new(v1.Equivalent)
		w.ObjectSelector = &metav1.LabelSelector{}
		// What webhooks that come later add is looked at as well.
		w.ReinvocationPolicy = new(v1.IfNeededReinvocationPolicy)
	}
	return configuration
}

// validatingConfig is mutatingConfig for the rules that only refuse. They run after all mutating
// webhooks, so they see what others have changed.
func (o *Options) validatingConfig(port int, bundle []byte) *v1.ValidatingWebhookConfiguration {
	pods, classes := v1.ValidatingWebhook{
		Name: podsName, Rules: ruleFor("", "pods", v1.NamespacedScope), FailurePolicy: new(v1.FailurePolicyType(o.FailurePolicy)),
		NamespaceSelector: o.namespaceSelector(), TimeoutSeconds: o.timeoutSeconds(), MatchConditions: []v1.MatchCondition{staying},
	}, v1.ValidatingWebhook{
		Name: priorityClassesName, Rules: ruleFor("scheduling.k8s.io", "priorityclasses", v1.ClusterScope), FailurePolicy: new(v1.Ignore),
		NamespaceSelector: &metav1.LabelSelector{}, TimeoutSeconds: o.timeoutSeconds(), MatchConditions: []v1.MatchCondition{isDefault},
	}
	configuration := &v1.ValidatingWebhookConfiguration{ObjectMeta: o.objectMeta(nil), Webhooks: []v1.ValidatingWebhook{pods, classes}}
	for i := range configuration.Webhooks {
		w := &configuration.Webhooks[i]
		w.ClientConfig = o.clientConfig(validatePath, port, bundle)
		w.AdmissionReviewVersions, w.SideEffects, w.MatchPolicy = []string{"v1"}, new(v1.SideEffectClassNone), new(v1.Equivalent)
		w.ObjectSelector = &metav1.LabelSelector{}
	}
	return configuration
}

// objectMeta is that of everything that the webhook makes: one name, and the labels of the
// installation.
func (o *Options) objectMeta(owners []metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.Service, OwnerReferences: owners, Labels: map[string]string{
		"app.kubernetes.io/name": "berth", "app.kubernetes.io/component": "webhook", "app.kubernetes.io/part-of": "berth",
	}}
}

// ruleFor has the webhook called when objects of a resource are created or updated, but not for
// their subresources, such as the status that kubelets write.
func ruleFor(group, resource string, scope v1.ScopeType) []v1.RuleWithOperations {
	return []v1.RuleWithOperations{{
		Operations: createAndUpdate,
		Rule:       v1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: []string{resource}, Scope: &scope},
	}}
}

// timeoutSeconds is how long an API server waits for an answer.
func (o *Options) timeoutSeconds() *int32 { return new(int32(o.Timeout.Seconds())) }

// namespaceSelector leaves out those that a cluster needs to come up, the webhook's own, and those
// that opted out. The API server applies it before it calls, so such namespaces do not depend on
// the webhook at all.
func (o *Options) namespaceSelector() *metav1.LabelSelector {
	excluded := append(slices.Clone(o.ExcludeNamespaces), o.Namespace)
	slices.Sort(excluded)
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: slices.Compact(excluded)},
		{Key: OptOutLabel, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"disabled"}},
	}}
}

// clientConfig tells API servers where the webhook is and which certificates to accept: through the
// Service, or by a URL if it runs outside the cluster.
func (o *Options) clientConfig(path string, port int, bundle []byte) v1.WebhookClientConfig {
	if o.AdvertiseHost != "" {
		return v1.WebhookClientConfig{URL: new(fmt.Sprintf("https://%s%s",
			net.JoinHostPort(o.AdvertiseHost, strconv.Itoa(port)), path)), CABundle: bundle}
	}
	return v1.WebhookClientConfig{CABundle: bundle, Service: &v1.ServiceReference{
		Namespace: o.Namespace, Name: o.Service, Path: &path, Port: new(int32(443)),
	}}
}

// isOurs reports whether a webhook in a configuration is one of Berth's. An administrator may have
// added others, which are left alone.
func isOurs(webhook string) bool { return strings.HasSuffix(webhook, nameSuffix) }
