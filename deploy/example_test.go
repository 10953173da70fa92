// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package deploy_test

import (
	"fmt"
	"io/fs"
	"slices"

	"github.com/berth-k8s/berth/deploy"
)

// The kustomizations can be listed, read and rendered like any other file system.
func ExampleManifests() {
	overlays, err := fs.ReadDir(deploy.Manifests(), "kustomize/overlays")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, overlay := range overlays {
		fmt.Println(overlay.Name())
	}
	// Output:
	// replace-default
	// second-scheduler
	// shadow
}

// Which components may delete pods?
func ExampleParts() {
	for _, part := range deploy.Parts() {
		rights, err := deploy.RightsOf(part)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(part, slices.Contains(rights, deploy.Right{Verb: "delete", Resource: "pods"}))
	}
	// Output:
	// scheduler true
	// controller true
	// webhook false
	// view false
}

// What may the webhook do with Secrets?
func ExampleRightsOf() {
	rights, err := deploy.RightsOf(deploy.Webhook)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, right := range rights {
		if right.Resource == "secrets" {
			fmt.Println(right)
		}
	}
	// Output:
	// get secrets berth-webhook in berth-system
	// list secrets berth-webhook in berth-system
	// watch secrets berth-webhook in berth-system
	// update secrets berth-webhook in berth-system
	// create secrets in berth-system
}

// Granted lists the rights of a ServiceAccount in any manifests.
func ExampleGranted() {
	const manifests = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: scale}
rules:
- apiGroups: [apps]
  resources: [deployments/scale]
  verbs: [get, update]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: scale, namespace: shop}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: scale}
subjects:
- {kind: ServiceAccount, namespace: platform, name: autoscaler}
`
	rights, err := deploy.Granted(manifests, "platform", "autoscaler")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, right := range rights {
		fmt.Println(right)
	}
	// Output:
	// get deployments.apps/scale in shop
	// update deployments.apps/scale in shop
}
