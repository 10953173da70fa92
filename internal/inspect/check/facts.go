package check

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"

	"github.com/berth-k8s/berth/deploy"
)

// Facts are what is known of a cluster. What could not be read is in Unread, and its field is
// empty.
type Facts struct {
	Version string   // of the API server: v1.36.3
	Groups  []string // of the API: apps, resource.k8s.io

	Nodes           []v1.Node
	PriorityClasses []schedulingv1.PriorityClass
	Budgets         []policyv1.PodDisruptionBudget
	Mutating        []admissionregistrationv1.MutatingWebhookConfiguration
	Validating      []admissionregistrationv1.ValidatingWebhookConfiguration

	// Pods by spec.schedulerName: how many there are, and how many of them have no node.
	Pods map[string]Count
	// Grouped is how many pods name a pod group.
	Grouped int
	// Processes are the control plane's that run as pods.
	Processes []Process
	// Leases that schedulers hold, by namespace/name.
	Leases map[string]string
	// Installed are the parts of Berth whose ServiceAccount exists.
	Installed []deploy.Part
	// SchedulerNames that Berth serves by the configuration that is installed, and the Lease that
	// it elects by.
	SchedulerNames []string
	SchedulerLease string
	// Denied are rights that a part needs and has not. A part that could not be asked about is not
	// in it.
	Denied map[deploy.Part][]string
	// WebhookEndpoints is how many addresses stand behind the webhook's Service; negative: there is
	// no Service.
	WebhookEndpoints int

	Unread []string // kinds, with the reason
}

// Count is of pods.
type Count struct{ All, Waiting int }

// Process is one container of the control plane that can be seen: a static pod's, say.
type Process struct {
	Name  string // kube-scheduler, kube-controller-manager, berth-scheduler, berth-controller
	Where string // namespace/pod
	Image string
	Args  []string // the command line, without the program
}

// flag is the value of a flag of the command line, "" if it is not given.
func (p *Process) flag(name string) string {
	for i, arg := range p.Args {
		if value, ok := cutPrefixes(arg, "--"+name+"=", "-"+name+"="); ok {
			return value
		}
		if arg == "--"+name && i+1 < len(p.Args) {
			return p.Args[i+1]
		}
	}
	return ""
}
