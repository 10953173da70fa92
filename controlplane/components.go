// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"maps"
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/deploy"
)

// permissions holds the grants of one component: cluster-wide, and per namespace. The keys of
// within are namespaces.
type permissions struct {
	everywhere []rbacv1.PolicyRule
	within     map[string][]rbacv1.PolicyRule
}

// listComponents returns Berth's processes outside the control plane. Each component has a
// kubeconfig NAME.kubeconfig in the data directory, the user name berth:NAME, and roles of that
// name with the component's permissions from the manifests. The simulated nodes, which are not in
// the manifests, have the permissions in simulatedNodesRules. No component is an administrator.
//
// `berth up` therefore runs components with the permissions of a real cluster, and a permission
// missing from a manifest causes the same failure as in such a cluster. guard adds the webhook, and
// the permissions to guard evictions.
func listComponents(guard bool) (map[string]permissions, error) {
	all := map[string]permissions{"nodes": {
		everywhere: simulatedNodesRules(),
		within:     map[string][]rbacv1.PolicyRule{v1.NamespaceNodeLease: {leaseRule("get", "create", "update")}},
	}}
	for name, part := range map[string]deploy.Part{
		"scheduler": deploy.Scheduler, "controller": deploy.Controller, "ui": deploy.View, "serve": deploy.View,
	} {
		rights, err := deploy.RightsOf(part)
		if err != nil {
			return nil, err
		}
		all[name] = permissionsFor(rights)
	}
	queries := all["serve"]
	queries.everywhere = append(queries.everywhere, rulesFor([]deploy.Right{ // the role system:auth-delegator
		{Group: "authentication.k8s.io", Resource: "tokenreviews", Verb: "create"},
		{Group: "authorization.k8s.io", Resource: "subjectaccessreviews", Verb: "create"},
	})...)
	all["serve"] = queries
	if guard {
		for name, part := range map[string]deploy.Part{"controller": deploy.Controller, "webhook": deploy.Webhook} {
			rights, err := deploy.RightsOf(part)
			if err != nil {
				return nil, err
			}
			more, err := deploy.GuardRights(part)
			if err != nil {
				return nil, err
			}
			all[name] = permissionsFor(append(rights, more...))
		}
	}
	// A role may name resources that the API does not serve, but these permissions are granted only
	// if the feature gate is enabled.
	if utilfeature.DefaultFeatureGate.Enabled(features.EvictionRequestAPI) {
		rights, err := deploy.EvictionRequestRights()
		if err != nil {
			return nil, err
		}
		controller := all["controller"]
		controller.everywhere = append(controller.everywhere, rulesFor(rights)...)
		all["controller"] = controller
	}
	// A scheduler standing in for kube-scheduler, as in `berth up --from-image`, uses
	// kube-scheduler's Lease.
	own := leaseRule("get", "update")
	own.ResourceNames = []string{"kube-scheduler"}
	all["scheduler"].within[metav1.NamespaceSystem] = append(all["scheduler"].within[metav1.NamespaceSystem], own)
	return all, nil
}

// leaseRule returns a rule for Leases.
func leaseRule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: verbs}
}

// permissionsFor grants each right in its namespace. Berth's own namespace need not exist here, so
// a right in this namespace is granted in all namespaces, for objects with the right's name.
// Rights to Leases without a name, such as create, are not granted; `berth up --from-image`, the
// only mode with leader election, creates them beforehand. Rights in other namespaces, such as
// kube-system, are granted in those namespaces.
func permissionsFor(rights []deploy.Right) permissions {
	byNamespace := map[string][]deploy.Right{}
	for _, right := range rights {
		if right.Namespace == deploy.Namespace {
			if right.Resource == "leases" && right.Name == "" {
				continue
			}
			right.Namespace = ""
		}
		byNamespace[right.Namespace] = append(byNamespace[right.Namespace], right)
	}
	granted := permissions{everywhere: rulesFor(byNamespace[""]), within: map[string][]rbacv1.PolicyRule{}}
	// The remaining rights are namespaced.
	delete(byNamespace, "")
	for namespace, rights := range byNamespace {
		granted.within[namespace] = rulesFor(rights)
	}
	return granted
}

// rulesFor converts permissions into one rule per resource and name. The order is fixed, so that
// reconciling unchanged permissions writes nothing.
func rulesFor(rights []deploy.Right) []rbacv1.PolicyRule {
	verbs := map[deploy.Right][]string{}
	for _, right := range rights {
		// The key omits the namespace: the caller has grouped by it.
		key := deploy.Right{Group: right.Group, Resource: right.Resource, Name: right.Name}
		// The rights granted in all namespaces may be for several namespaces.
		if !slices.Contains(verbs[key], right.Verb) {
			verbs[key] = append(verbs[key], right.Verb)
		}
	}

	var rules []rbacv1.PolicyRule
	for _, of := range slices.SortedFunc(maps.Keys(verbs), func(a, b deploy.Right) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name))
	}) {
		rule := rbacv1.PolicyRule{APIGroups: []string{of.Group}, Resources: []string{of.Resource}, Verbs: verbs[of]}
		// A rule without a name covers all objects of the resource.
		if of.Name != "" {
			rule.ResourceNames = []string{of.Name}
		}
		rules = append(rules, rule)
	}

	return rules
}

// simulatedNodesRules returns the rules for `berth nodes`, which runs many nodes in one process. It
// may write to any pod and node, whereas the API's Node authorizer restricts a real node to itself.
func simulatedNodesRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status", "pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "delete"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
	}
}

// componentUser returns the user name in a component's certificate, which is also the name of its
// roles and bindings.
func componentUser(name string) string { return "berth:" + name }

// roles grants the components their permissions. Each component has a ClusterRole and, in each
// namespace where it has permissions, a Role, each with a binding. All of these objects have the
// same name.
type roles struct {
	cluster         []rbacv1.ClusterRole
	clusterBindings []rbacv1.ClusterRoleBinding
	namespaced      []rbacv1.Role
	bindings        []rbacv1.RoleBinding
}

// componentRoles builds the roles of all components and their bindings, in a fixed order.
func componentRoles(guard bool) (r roles, err error) {
	all, err := listComponents(guard)
	if err != nil {
		return roles{}, err
	}

	for _, name := range slices.Sorted(maps.Keys(all)) {
		user := componentUser(name)
		r.cluster = append(r.cluster, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: all[name].everywhere})
		binding := bindClusterRole(user, user, rbacv1.UserKind, user)
		r.clusterBindings = append(r.clusterBindings, binding)
		for _, namespace := range slices.Sorted(maps.Keys(all[name].within)) {
			meta := metav1.ObjectMeta{Namespace: namespace, Name: user}
			r.namespaced = append(r.namespaced, rbacv1.Role{ObjectMeta: meta, Rules: all[name].within[namespace]})
			r.bindings = append(r.bindings, rbacv1.RoleBinding{
				ObjectMeta: meta, Subjects: binding.Subjects, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
			})
		}
	}

	return r, nil
}

// writeComponents writes the components' kubeconfigs at every start. The certificates are new, and
// valid for certificateLife.
func (c *controlPlane) writeComponents() error {
	all, err := listComponents(c.options.GuardEvictions)
	if err != nil {
		return err
	}

	for name := range all {
		config, err := c.pki.newKubeconfig(c.server, componentUser(name))
		if err != nil {
			return err
		}
		if err := c.writeKubeconfig(name+".kubeconfig", config); err != nil {
			return err
		}
	}

	return nil
}
