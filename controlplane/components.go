package controlplane

import (
	"cmp"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/deploy"
)

// components are Berth's processes beside the control plane. Each has a kubeconfig of its own in
// the data directory, NAME.kubeconfig, in the name berth:NAME, and the permissions of a cluster
// role of that name: those that the manifests grant to the component, and for the simulated nodes,
// which no manifest has, those that nodes use. None is an administrator.
func components() (map[string][]rbacv1.PolicyRule, error) {
	all := map[string][]rbacv1.PolicyRule{"nodes": simulatedNodesRules()}
	for name, part := range map[string]deploy.Part{"scheduler": deploy.Scheduler, "controller": deploy.Controller, "ui": deploy.View} {
		rights, err := deploy.RightsOf(part)
		if err != nil {
			return nil, err
		}
		all[name] = rulesFor(rights)
	}
	// One that stands in for kube-scheduler, as in `berth up --from-image`, goes by its Lease.
	all["scheduler"] = append(all["scheduler"], rbacv1.PolicyRule{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, ResourceNames: []string{"kube-scheduler"}, Verbs: []string{"get", "update"},
	})
	return all, nil
}

// rulesFor grants the rights in every namespace: there is no one else in this cluster whose Leases
// they could mean.
func rulesFor(rights []deploy.Right) []rbacv1.PolicyRule {
	verbs := map[deploy.Right][]string{}
	for _, right := range rights {
		key := deploy.Right{Group: right.Group, Resource: right.Resource, Name: right.Name}
		if !slices.Contains(verbs[key], right.Verb) {
			verbs[key] = append(verbs[key], right.Verb)
		}
	}
	var rules []rbacv1.PolicyRule
	for _, of := range slices.SortedFunc(maps.Keys(verbs), func(a, b deploy.Right) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name))
	}) {
		rule := rbacv1.PolicyRule{APIGroups: []string{of.Group}, Resources: []string{of.Resource}, Verbs: verbs[of]}
		if of.Name != "" {
			rule.ResourceNames = []string{of.Name}
		}
		rules = append(rules, rule)
	}
	return rules
}

// simulatedNodesRules are for `berth nodes`, which is many nodes in one process. A node that is
// real has less: itself.
func simulatedNodesRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status", "pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "delete"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
	}
}

func componentUser(name string) string { return "berth:" + name }

// componentRoles are the cluster roles of the components, and who has them.
func componentRoles() (roles []rbacv1.ClusterRole, bindings []rbacv1.ClusterRoleBinding, err error) {
	all, err := components()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		user := componentUser(name)
		roles = append(roles, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: all[name]})
		bindings = append(bindings, bindClusterRole(user, user, rbacv1.UserKind, user))
	}
	return roles, bindings, nil
}

// writeComponents writes the kubeconfigs of the components, anew at every start.
func (c *controlPlane) writeComponents() error {
	all, err := components()
	if err != nil {
		return err
	}
	for name := range all {
		config, err := c.pki.kubeconfig(c.server, componentUser(name))
		if err != nil {
			return err
		}
		content, err := clientcmd.Write(*config)
		if err != nil {
			return err
		}
		if err := writeAtomically(c.dir.path(name+".kubeconfig"), content, 0o600, false); err != nil {
			return err
		}
	}
	return nil
}
