// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

// DefaultBinder binds the pod through the scheduler itself. It never passes a pod to the next
// binder.
type DefaultBinder struct{}

// Name returns the plugin's name.
func (DefaultBinder) Name() string { return "DefaultBinder" }

// OwnBinder is a plugin at Bind that makes the scheduler bind the pod itself.
type OwnBinder interface{ BindsItself() }

// BindsItself implements [OwnBinder].
func (DefaultBinder) BindsItself() {}
