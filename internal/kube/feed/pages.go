// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/quantity"
)

// mostOfPage bounds the text of a page of several objects. Page sizes are numbers of objects, and
// an object may have a megabyte and a half: one page of a tenant's objects could be as large as all
// the memory of a component.
const mostOfPage = 16 << 20

// errLargePage is the error of a page that was not read to its end.
var errLargePage = errors.New("the page is too large: it has to be asked for with fewer objects")

// ReadInto reads the response to a request for a page of at most limit objects into a list. With a
// limit of more than one object, it reads no more than mostOfPage: errLargePage requests fewer
// objects. A single object, and a list without pages (limit 0), are read whatever their size.
func ReadInto(ctx context.Context, request *rest.Request, limit int64, list runtime.Object) error {
	body, err := request.Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()

	bounded := io.Reader(body)
	if limit > 1 {
		bounded = io.LimitReader(body, mostOfPage+1)
	}
	text, err := io.ReadAll(bounded)
	if err != nil {
		return err
	}
	if limit > 1 && len(text) > mostOfPage {
		return errLargePage
	}
	_, _, err = scheme.Codecs.UniversalDeserializer().Decode(text, nil, list)
	return err
}

// Asking requests a page of a list.
type Asking func(context.Context, metav1.ListOptions) (runtime.Object, error)

// Pages requests a list page by page, and shows each of its objects. It requests an oversized page
// again with a quarter of the objects, and the next ones with more and more. It returns the version
// of the list, and whether any page preceded a failed one.
//
// For example, pages of 500: the third one is too large and is requested with 125 objects; the
// pages after it have 250, and then 500 again.
func Pages(ctx context.Context, options metav1.ListOptions, ask Asking, see func(runtime.Object)) (version string, begun bool, err error) {
	for most := options.Limit; ; options.Limit = min(2*options.Limit, most) {
		page, err := ask(ctx, options)
		for errors.Is(err, errLargePage) && options.Limit > 1 {
			options.Limit = max(1, options.Limit/4)
			page, err = ask(ctx, options)
		}
		if err != nil {
			return "", options.Continue != "", err
		}

		list, err := meta.ListAccessor(page)
		if err == nil {
			err = meta.EachListItem(page, func(o runtime.Object) error { see(quantity.BoundAll(o)); return nil })
		}
		if err != nil {
			return "", false, err
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return list.GetResourceVersion(), true, nil
		}
	}
}
