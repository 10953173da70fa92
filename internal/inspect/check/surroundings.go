// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package check

import (
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/answer"
)

// This file checks other components that affect the cluster's pods: webhooks, budgets, priority
// classes and extensions. Their findings are not faults of Berth's installation, but explain why
// pods are created late, are not evicted, or are not preempted.

// hook holds the common fields of both kinds of webhooks, with the name of the configuration.
// Fields are nil where the API's are.
type hook struct {
	configuration, name string
	policy              *admissionregistrationv1.FailurePolicyType
	timeout             *int32
	namespaces          *metav1.LabelSelector
	rules               []admissionregistrationv1.RuleWithOperations
}

// listHooks lists all webhooks of the cluster, including Berth's own.
func (j *judge) listHooks() []hook {
	var all []hook
	for _, c := range j.Mutating {
		for _, w := range c.Webhooks {
			all = append(all, hook{c.Name, w.Name, w.FailurePolicy, w.TimeoutSeconds, w.NamespaceSelector, w.Rules})
		}
	}
	for _, c := range j.Validating {
		for _, w := range c.Webhooks {
			all = append(all, hook{c.Name, w.Name, w.FailurePolicy, w.TimeoutSeconds, w.NamespaceSelector, w.Rules})
		}
	}
	return all
}

// checkWebhooks finds webhooks that can block a component's requests to bind, delete or taint, or
// the start of the pods of kube-system. It reports the most severe problem of each webhook.
func (j *judge) checkWebhooks() {
	for _, h := range j.listHooks() {
		// ownWebhook checks Berth's own webhook.
		if strings.HasSuffix(h.name, ".admission.berth.dev") {
			continue
		}
		// Fail is the API's default.
		switch required := h.policy == nil || *h.policy == admissionregistrationv1.Fail; {
		case h.matchesRequest("pods/binding", admissionregistrationv1.Create):
			j.addFinding(Warning, "webhooks", "exclude pods/binding, or accept that it can reject and delays every placement",
				"%s is called for every binding%s", h.hookTitle(),
				ifSo(required, "; if it does not answer, no pod is bound"))
		case required && h.matchesRequest("pods", admissionregistrationv1.Delete):
			j.addFinding(Warning, "webhooks", "remove DELETE from its rules, or set failurePolicy: Ignore",
				"%s must answer before a pod is deleted: while it does not, nothing is evicted or preempted", h.hookTitle())
		case required && h.matchesRequest("pods", admissionregistrationv1.Create) && h.selectsNamespace("kube-system"):
			j.addFinding(Warning, "webhooks", "exclude kube-system by its namespaceSelector",
				"%s must answer before a pod of kube-system is created: a cluster that is down may not come up", h.hookTitle())
		case required && h.matchesRequest("nodes", admissionregistrationv1.Update):
			j.addFinding(Warning, "webhooks", "set failurePolicy: Ignore for nodes",
				"%s must answer before a node is tainted", h.hookTitle())
		}

		// Ten seconds are the default of the API.
		if h.timeout != nil && *h.timeout > 10 && h.matchesRequest("pods", admissionregistrationv1.Create) {
			j.addFinding(Note, "webhooks", "", "%s may hold up the creation of a pod for %d s", h.hookTitle(), *h.timeout)
		}
	}
}

// ifSo returns the text if the condition holds, and "" otherwise.
func ifSo(so bool, text string) string {
	if so {
		return text
	}
	return ""
}

// hookTitle returns the webhook's display name.
func (h *hook) hookTitle() string { return h.configuration + " (" + h.name + ")" }

// matchesRequest reports whether the webhook's rules cover an operation on a resource or
// subresource of the core API. It supports the API's wildcards: * for resources without
// subresources, */* for all, pods/* and */binding.
func (h *hook) matchesRequest(resource string, operation admissionregistrationv1.OperationType) bool {
	// A rule for pods does not cover pods/binding.
	parent, sub, _ := strings.Cut(resource, "/")
	return slices.ContainsFunc(h.rules, func(r admissionregistrationv1.RuleWithOperations) bool {
		return (slices.Contains(r.APIGroups, "") || slices.Contains(r.APIGroups, "*")) &&
			(slices.Contains(r.Operations, operation) || slices.Contains(r.Operations, admissionregistrationv1.OperationAll)) &&
			slices.ContainsFunc(r.Resources, func(have string) bool {
				if sub == "" {
					return have == resource || have == "*" || have == "*/*"
				}
				return have == resource || have == "*/*" || have == parent+"/*" || have == "*/"+sub
			})
	})
}

// selectsNamespace reports whether the webhook is called for a namespace with only the name label.
func (h *hook) selectsNamespace(namespace string) bool {
	// A missing selector selects all namespaces.
	selector, err := metav1.LabelSelectorAsSelector(h.namespaces)
	return h.namespaces == nil || err == nil && selector.Matches(labels.Set{v1.LabelMetadataName: namespace})
}

// ownWebhook checks whether Berth's own webhook can respond: it must be registered, have a CA
// bundle, and have ready replicas. If it is neither registered nor installed, there is no finding.
func (j *judge) ownWebhook() {
	registered := slices.ContainsFunc(j.listHooks(), func(h hook) bool { return strings.HasSuffix(h.name, ".admission.berth.dev") })
	// The API server does not call a webhook if it cannot verify its certificate.
	trusted := true
	for _, c := range j.Mutating {
		for _, w := range c.Webhooks {
			trusted = trusted && (!strings.HasSuffix(w.Name, ".admission.berth.dev") || len(w.ClientConfig.CABundle) > 0)
		}
	}

	switch {
	// A removed installation has left its webhook configurations behind.
	case registered && !j.isInstalled(deploy.Webhook) && j.WebhookEndpoints <= 0:
		j.addFinding(Warning, "berth-webhook", "delete its webhook configurations, or install it",
			"its configurations exist, and no replica answers: pods are created with a delay, and without the rules")
	case registered && j.WebhookEndpoints == 0:
		j.addFinding(Problem, "berth-webhook", "see why its pods are not ready", "no replica answers")
	case registered && !trusted:
		j.addFinding(Problem, "berth-webhook", j.orStart(deploy.Webhook, "see its log: the webhook writes its CA itself"),
			"its configurations have no caBundle")
	// The Service is missing or unreadable, so the replicas are unknown.
	case registered && j.WebhookEndpoints < 0:
		j.addFinding(Note, "berth-webhook", "check that its Service exists, and that you may read it",
			"registered; whether a replica answers is unknown")
	case registered:
		j.addFinding(OK, "berth-webhook", "", "registered, with %s ready", answer.Count(j.WebhookEndpoints, "replica"))
	case j.isInstalled(deploy.Webhook):
		j.addFinding(Problem, "berth-webhook", j.orStart(deploy.Webhook, "see its log: it registers itself when it is ready"),
			"is installed, and not registered")
	}
}

// checkBudgets counts the budgets that allow no disruption now. For some this may be temporary.
func (j *judge) checkBudgets() {
	var blocking []string
	for _, b := range j.Budgets {
		// A budget without pods blocks nothing.
		if b.Status.ExpectedPods > 0 && b.Status.DisruptionsAllowed == 0 {
			blocking = append(blocking, b.Namespace+"/"+b.Name)
		}
	}
	if len(blocking) > 0 {
		j.addFinding(Note, "budgets", "berth what-if drain shows what that means for a node",
			"%d of %d allow no disruption now: %s", len(blocking), len(j.Budgets), joinNames(blocking))
	} else if len(j.Budgets) > 0 {
		j.addFinding(OK, "budgets", "", "each of %d allows a disruption", len(j.Budgets))
	}
}

// checkPriorities reports the priority classes; preemption requires at least one.
func (j *judge) checkPriorities() {
	var own, never, standard []string
	for _, class := range j.PriorityClasses {
		// Every cluster has the two system classes.
		if strings.HasPrefix(class.Name, "system-") {
			continue
		}
		own = append(own, class.Name)
		if class.PreemptionPolicy != nil && *class.PreemptionPolicy == v1.PreemptNever {
			never = append(never, class.Name)
		}
		if class.GlobalDefault {
			standard = append(standard, class.Name)
		}
	}

	switch {
	// If several classes are marked as the default, the API server uses the lowest of them.
	case len(standard) > 1:
		j.addFinding(Warning, "priorities", "set globalDefault in one class only",
			"several classes are the default, and the lowest of them counts: %s", joinNames(standard))
	case len(own) == 0 && len(j.PriorityClasses) > 0:
		j.addFinding(Note, "priorities", "", "only the system's classes: pods are preempted only for system pods")
	case len(own) > 0:
		j.addFinding(OK, "priorities", "", "classes: %s%s%s", joinNames(own),
			ifSo(len(standard) == 1, "; by default "+strings.Join(standard, "")),
			ifSo(len(never) > 0, "; that never preempt: "+joinNames(never)))
	}
}

// neighbours lists extensions that influence the placement of pods, by API group, with advice for
// Berth's users.
var neighbours = map[string]string{
	"kueue.x-k8s.io":            "Kueue gates pods or suspends Jobs; Berth places what it admits",
	"scheduling.volcano.sh":     "Volcano schedules pods of its scheduler name itself; its PodGroups mean nothing to Berth",
	"scheduling.x-k8s.io":       "the PodGroups and ElasticQuotas of scheduler-plugins mean nothing to Berth",
	"scheduling.koordinator.sh": "Koordinator schedules pods of its scheduler name itself",
	"karpenter.sh":              "Karpenter creates nodes for pods that Berth marks unschedulable, with upstream's messages",
	"autoscaling.k8s.io":        "the vertical autoscaler evicts pods by the Eviction API; budgets apply",
	"remediation.medik8s.io":    "node remediation may taint nodes out-of-service, which Berth treats like any NoExecute taint",
}

// checkNeighbours reports the known extensions with served API groups.
func (j *judge) checkNeighbours() {
	for _, group := range slices.Sorted(slices.Values(j.Groups)) {
		if says, known := neighbours[group]; known {
			j.addFinding(Note, "extensions", "", "%s: %s", group, says)
		}
	}
}

// reportUnread reports unreadable parts last: they may make the findings above incomplete.
func (j *judge) reportUnread() {
	for _, what := range j.Unread {
		j.addFinding(Note, "not read", "bind yourself to a role that may read it, as berth-view", "%s", what)
	}
}
