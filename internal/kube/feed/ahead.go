// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"context"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Ahead returns a function that requests the pages of a list in order, as [Pages] does. The next
// page is read while a page in the protobuf format is decoded and processed. The unused fields of
// its objects are not decoded. If the list is abandoned, its context must be canceled.
func Ahead(get func(metav1.ListOptions) *rest.Request, unused Fields, newList func() runtime.Object) Asking {
	text, following := new(bytes.Buffer), new(bytes.Buffer)
	var next chan error // result of reading the following page into text; nil if it was not requested
	return func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		var err error
		if next != nil {
			err, next = <-next, nil
		} else {
			err = fetch(ctx, get(o), o.Limit, text)
		}
		if err != nil {
			return nil, err
		}

		page := text
		if o.Continue = continueOf(page.Bytes()); o.Continue != "" {
			text, following = following, text
			result, into := make(chan error, 1), text
			go func() { result <- fetch(ctx, get(o), o.Limit, into) }()
			next = result
		}
		list := newList()
		return list, decodeList(page, unused, list)
	}
}

// continueOf returns the token of the following page: field 3 of field 1 of a list. It is empty for
// the last page, and for pages in JSON.
func continueOf(page []byte) (token string) {
	Fields{2: {1: {3: nil}}}.walkObject(page, func(field []byte, in bool) {
		if in {
			_, _, tag := protowire.ConsumeTag(field)
			value, _ := protowire.ConsumeBytes(field[tag:])
			token = string(value)
		}
	})
	return token
}
