// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

//go:embed kustomize
var manifests embed.FS

// Manifests returns the kustomizations, below kustomize/.
func Manifests() fs.FS { return manifests }

// Part is one of Berth's components, or the role of its users.
type Part string

// The components, and the role View.
const (
	Scheduler  Part = "scheduler"
	Controller Part = "controller"
	Webhook    Part = "webhook"
	View       Part = "view"
)

// Parts returns all parts.
func Parts() []Part { return []Part{Scheduler, Controller, Webhook, View} }

// files maps components to the manifests of their roles.
var files = map[Part]string{
	Scheduler:  "kustomize/base/scheduler-rbac.yaml",
	Controller: "kustomize/components/controller/controller-rbac.yaml",
	Webhook:    "kustomize/components/webhook/webhook-rbac.yaml",
	View:       "kustomize/base/view.yaml",
}

// Namespace is Berth's namespace.
const Namespace = "berth-system"

// Right is one permission of a component.
type Right struct {
	// Namespace restricts the right; empty: all.
	Namespace string
	Verb      string
	Group     string
	// Resource has its subresource after a slash.
	Resource string
	// Name restricts the right to one object; empty: all.
	Name string
}

func (r Right) String() string {
	resource := r.Resource
	if r.Group != "" {
		name, sub, _ := strings.Cut(r.Resource, "/")
		if resource = name + "." + r.Group; sub != "" {
			resource += "/" + sub
		}
	}
	text := r.Verb + " " + resource
	if r.Name != "" {
		text += " " + r.Name
	}
	if r.Namespace != "" {
		text += " in " + r.Namespace
	}
	return text
}

// RightsOf returns the permissions that the manifests grant to a component.
func RightsOf(part Part) ([]Right, error) {
	file, ok := files[part]
	if !ok {
		return nil, fmt.Errorf("there is no component %q", part)
	}
	text, err := manifests.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all roles
	if err := all.read(string(text)); err != nil {
		return nil, fmt.Errorf("%s: %w", path.Base(file), err)
	}
	if part == View { // this role is bound to users, not to a ServiceAccount of Berth
		return flat("", all.rules["ClusterRole//berth-view"]), nil
	}
	return all.grantedTo(Namespace, "berth-"+string(part)), nil
}

// EvictionRequestRights returns the additional permissions that the controller needs to respond to
// EvictionRequests.
func EvictionRequestRights() ([]Right, error) {
	return rightsIn(Controller, "eviction-requests/rbac.yaml")
}

// GuardRights returns the additional permissions that a component needs to guard evictions.
func GuardRights(part Part) ([]Right, error) {
	if part == Controller {
		view, err := RightsOf(View)
		if err != nil {
			return nil, err
		}
		more, err := rightsIn(part, "surge/rbac.yaml", "eviction-guard/rbac.yaml")
		return append(view, more...), err
	}
	return rightsIn(part, "eviction-guard/rbac.yaml")
}

// rightsIn returns the permissions that files below components grant to a component.
func rightsIn(part Part, files ...string) (rights []Right, err error) {
	for _, file := range files {
		text, err := manifests.ReadFile("kustomize/components/" + file)
		if err != nil {
			return nil, err
		}
		more, err := Granted(string(text), Namespace, "berth-"+string(part))
		if err != nil {
			return nil, err
		}
		rights = append(rights, more...)
	}
	return rights, nil
}

// Granted returns the permissions that manifests grant to a ServiceAccount by their bindings.
func Granted(manifests, namespace, account string) ([]Right, error) {
	var all roles
	if err := all.read(manifests); err != nil {
		return nil, err
	}
	return all.grantedTo(namespace, account), nil
}

// roles holds the roles and bindings of manifests.
type roles struct {
	rules    map[string][]rbacv1.PolicyRule // by kind, namespace and name
	bindings []rbacv1.RoleBinding           // without a namespace: a ClusterRoleBinding
}

func (r *roles) read(manifests string) error {
	r.rules = map[string][]rbacv1.PolicyRule{}
	for _, document := range strings.Split("\n"+manifests, "\n---") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			return err
		}
		switch kind.Kind {
		case "Role", "ClusterRole":
			var role rbacv1.Role
			if err := yaml.Unmarshal([]byte(document), &role); err != nil {
				return err
			}
			r.rules[kind.Kind+"/"+role.Namespace+"/"+role.Name] = role.Rules
		case "RoleBinding", "ClusterRoleBinding":
			var binding rbacv1.RoleBinding
			if err := yaml.Unmarshal([]byte(document), &binding); err != nil {
				return err
			}
			r.bindings = append(r.bindings, binding)
		}
	}

	return nil
}

func (r *roles) grantedTo(namespace, account string) []Right {
	var rights []Right
	for _, binding := range r.bindings {
		if !slices.ContainsFunc(binding.Subjects, func(s rbacv1.Subject) bool {
			return s.Kind == rbacv1.ServiceAccountKind && s.Namespace == namespace && s.Name == account
		}) {
			continue
		}
		role := binding.RoleRef.Kind + "//" + binding.RoleRef.Name
		if binding.RoleRef.Kind == "Role" {
			role = "Role/" + binding.Namespace + "/" + binding.RoleRef.Name
		}
		rights = append(rights, flat(binding.Namespace, r.rules[role])...)
	}
	return rights
}

func flat(namespace string, rules []rbacv1.PolicyRule) []Right {
	var rights []Right
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						rights = append(rights, Right{Namespace: namespace, Verb: verb, Group: group, Resource: resource, Name: name})
					}
				}
			}
		}
	}

	return rights
}
