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
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-k8s/berth/deploy"
)

// permissions are what one component may do: everywhere, and in single namespaces. The keys of
// within are namespaces.
type permissions struct {
	everywhere []rbacv1.PolicyRule
	within     map[string][]rbacv1.PolicyRule
}

// listComponents are Berth's processes beside the control plane. Each has a kubeconfig of its own
// in the data directory, NAME.kubeconfig, in the name berth:NAME, and the permissions that the
// manifests grant to the component, in roles of that name. The simulated nodes, which no manifest
// has, have those that nodes use. None is an administrator.
//
// So `berth up` runs components with the permissions that they have in a real cluster: what is
// missing in a manifest fails here, too.
func listComponents() (map[string]permissions, error) {
	all := map[string]permissions{"nodes": {
		everywhere: simulatedNodesRules(),
		within:     map[string][]rbacv1.PolicyRule{v1.NamespaceNodeLease: {leaseRule("get", "create", "update")}},
	}}
	for name, part := range map[string]deploy.Part{"scheduler": deploy.Scheduler, "controller": deploy.Controller, "ui": deploy.View} {
		rights, err := deploy.RightsOf(part)
		if err != nil {
			return nil, err
		}
		all[name] = permissionsFor(rights)
	}
	// A role may name resources that the API does not serve, but only those that are needed are
	// granted.
	if utilfeature.DefaultFeatureGate.Enabled(features.EvictionRequestAPI) {
		rights, err := deploy.EvictionRequestRights()
		if err != nil {
			return nil, err
		}
		controller := all["controller"]
		controller.everywhere = append(controller.everywhere, rulesFor(rights)...)
		all["controller"] = controller
	}
	// One that stands in for kube-scheduler, as in `berth up --from-image`, goes by its Lease.
	own := leaseRule("get", "update")
	own.ResourceNames = []string{"kube-scheduler"}
	all["scheduler"].within[metav1.NamespaceSystem] = append(all["scheduler"].within[metav1.NamespaceSystem], own)
	return all, nil
}

// leaseRule is a rule about Leases.
func leaseRule(verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, Verbs: verbs}
}

// permissionsFor grants the rights where they are meant. Berth's own namespace need not exist here:
// what a component may do there holds for objects of that name in all namespaces. To create Leases
// cannot be limited by name, and so is not granted; `berth up --from-image`, the only one that
// elects leaders, makes them beforehand. Those in other namespaces, such as kube-system, are
// granted there.
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
	// What is left is for single namespaces.
	delete(byNamespace, "")
	for namespace, rights := range byNamespace {
		granted.within[namespace] = rulesFor(rights)
	}
	return granted
}

// rulesFor turns permissions into rules, one for each resource and name, in a fixed order:
// reconciling is then without changes where nothing has changed.
func rulesFor(rights []deploy.Right) []rbacv1.PolicyRule {
	verbs := map[deploy.Right][]string{}
	for _, right := range rights {
		// The namespace is left out: the caller has sorted by it.
		key := deploy.Right{Group: right.Group, Resource: right.Resource, Name: right.Name}
		// The same permission can come from several namespaces.
		if !slices.Contains(verbs[key], right.Verb) {
			verbs[key] = append(verbs[key], right.Verb)
		}
	}

	var rules []rbacv1.PolicyRule
	for _, of := range slices.SortedFunc(maps.Keys(verbs), func(a, b deploy.Right) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name))
	}) {
		rule := rbacv1.PolicyRule{APIGroups: []string{of.Group}, Resources: []string{of.Resource}, Verbs: verbs[of]}
		// Without a name the rule is for all objects of the resource.
		if of.Name != "" {
			rule.ResourceNames = []string{of.Name}
		}
		rules = append(rules, rule)
	}

	return rules
}

// simulatedNodesRules are for `berth nodes`, which is many nodes in one process. A node that is
// real has less: itself. They may write to any pod and node, which the API's Node authorizer allows
// no real node.
func simulatedNodesRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch", "create", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status", "pods/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch", "delete"}},
		{APIGroups: []string{"events.k8s.io"}, Resources: []string{"events"}, Verbs: []string{"create"}},
	}
}

// componentUser is the name in a component's certificate, and of its roles and bindings.
func componentUser(name string) string { return "berth:" + name }

// roles are what gives the components their permissions. Each component has one of each kind, all
// of the same name.
type roles struct {
	cluster         []rbacv1.ClusterRole
	clusterBindings []rbacv1.ClusterRoleBinding
	namespaced      []rbacv1.Role
	bindings        []rbacv1.RoleBinding
}

// componentRoles makes the roles of all components, and what binds each to its user. They are
// listed in a fixed order.
func componentRoles() (r roles, err error) {
	all, err := listComponents()
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

// writeComponents writes the kubeconfigs of the components, anew at every start. The certificates
// are new, and valid for certificateLife.
func (c *controlPlane) writeComponents() error {
	all, err := listComponents()
	if err != nil {
		return err
	}

	for name := range all {
		config, err := c.pki.newKubeconfig(c.server, componentUser(name))
		if err != nil {
			return err
		}
		content, err := clientcmd.Write(*config)
		if err != nil {
			return err
		}
		if err := writeAtomically(c.dir.pathOf(name+".kubeconfig"), content, 0o600); err != nil {
			return err
		}
	}

	return nil
}
