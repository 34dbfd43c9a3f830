//! A launch reports the cause, not its echoes.

use shard_tensor::{Error, ErrorClass, launch, replicate, shard};

#[test]
fn one_ranks_own_error_is_the_cause() {
    let error = launch(4, |ctx| {
        let mesh = ctx.mesh_of(4)?;
        if ctx.rank() == 2 {
            return Err(Error::custom("no such file"));
        }
        mesh.ones([4], [shard(0)])?.sum_all()?.item()
    });
    let error = error.unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.rank()),
        ("rank 2: no such file", Some(2))
    );
}

#[test]
fn a_panic_is_the_cause() {
    let error = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        assert_ne!(ctx.rank(), 1, "the reactor is too hot");
        mesh.ones([4], [shard(0)])?.sum_all()?.item()
    });
    let error = error.unwrap_err();
    // The panic itself, not what the others heard of it.
    assert!(matches!(error, Error::Launch(_)), "{error:?}");
    assert_eq!(error.rank(), Some(1));
    assert!(
        error.to_string().contains("the reactor is too hot"),
        "{error}"
    );
    assert_eq!(error.class(), ErrorClass::Failure);
}

#[test]
fn a_panic_that_only_echoes_is_not_the_cause() {
    let error = launch(3, |ctx| {
        let mesh = ctx.mesh_of(3)?;
        let x = mesh.ones([4], [shard(0)])?;
        if ctx.rank() == 0 {
            return Err(Error::custom("the disk is full"));
        }
        // The operator panics on hearing of rank 0.
        let y = &x + &mesh.ones([4], [shard(0).sizes([0, 0, 4])])?;
        y.sum_all()?.item()
    });
    assert_eq!(error.unwrap_err().to_string(), "rank 0: the disk is full");
}

#[test]
fn an_error_that_all_ranks_return_names_none() {
    for _ in 0..20 {
        let error = launch(4, |ctx| ctx.mesh_of(4)?.ones([4], [shard(3)]).map(|_| ()));
        let error = error.unwrap_err();
        assert_eq!((error.rank(), error.class()), (None, ErrorClass::Uniform));
        assert!(matches!(error, Error::Spec(_)), "{error:?}");
    }
}

#[test]
fn a_mesh_must_fit_the_program() {
    let texts = launch(2, |ctx| Ok(ctx.mesh_of([2, 2]).unwrap_err().to_string()));
    assert!(texts.unwrap()[0].contains("ranks below 2"));
    assert!(
        launch(0, |_| Ok(()))
            .unwrap_err()
            .to_string()
            .contains("0 ranks")
    );
}

#[test]
fn waiting_for_each_other_is_found_out() {
    let error = launch(2, |ctx| {
        let mesh = ctx.mesh_of(2)?;
        let x = mesh.ones([4], [shard(0)])?;
        match ctx.rank() {
            0 => x.redistribute([replicate()])?.sum_all()?.item(),
            _ => ctx.world().barrier().map(|()| 0.0).map_err(Error::from),
        }
    });
    let error = error.unwrap_err();
    assert!(!matches!(error, Error::Launch(_)), "{error}");
    assert_eq!(error.class(), ErrorClass::Failure, "{error}");
}
