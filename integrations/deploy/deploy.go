// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package components has the kustomize components that install the integrations in a cluster.
package components

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

//go:embed kueue expander
var manifests embed.FS

// Text returns the manifests of a component, such as kueue.
func Text(component string) (string, error) {
	files, err := fs.Glob(manifests, component+"/"+component+"*.yaml")
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("component %q: no manifests (%w)", component, err)
	}
	var all []string
	for _, file := range files {
		text, err := manifests.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("%s: %w", path.Base(file), err)
		}
		all = append(all, string(text))
	}
	return strings.Join(all, "---\n"), nil
}

// Objects returns the objects of a component. Unknown fields are an error.
func Objects(component string) ([]runtime.Object, error) {
	text, err := Text(component)
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	for _, document := range strings.Split(text, "---\n") {
		object, _, err := decoder.Decode([]byte(document), nil, nil)
		if err != nil {
			return nil, fmt.Errorf("component %s: %w\n%s", component, err, document)
		}
		objects = append(objects, object)
	}
	return objects, nil
}

// Arguments returns the arguments of the program of a component.
func Arguments(component string) ([]string, error) {
	objects, err := Objects(component)
	if err != nil {
		return nil, err
	}
	for _, object := range objects {
		if d, ok := object.(*appsv1.Deployment); ok {
			return d.Spec.Template.Spec.Containers[0].Args, nil
		}
	}
	return nil, fmt.Errorf("component %s has no Deployment", component)
}
