//! Who a traced command runs as.

use std::{ffi::CString, path::PathBuf};

use nix::unistd::{Uid, User, getgrouplist};
use rustix::{
    process::{Gid as RawGid, Uid as RawUid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// A user as the system's database has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// All groups.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: PathBuf,
}

impl Account {
    /// Looks a user up, by name or number.
    ///
    /// # Errors
    /// One sentence: there is no such user, or the database cannot be read.
    pub fn find(name: &str) -> Result<Self, String> {
        let by_number = || match name.parse() {
            Ok(uid) => User::from_uid(Uid::from_raw(uid)),
            Err(_) => Ok(None),
        };
        let found = User::from_name(name).and_then(|user| match user {
            Some(user) => Ok(Some(user)),
            None => by_number(),
        });
        let user = found
            .map_err(|error| format!("cannot look up the user `{name}`: {error}"))?
            .ok_or_else(|| format!("there is no user `{name}`; name another with --user"))?;
        let c_name = CString::new(user.name.as_str())
            .map_err(|_| format!("the user `{name}` has no usable name"))?;
        let groups = getgrouplist(&c_name, user.gid)
            .map_err(|error| format!("cannot look up the groups of `{name}`: {error}"))?;
        Ok(Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(|gid| gid.as_raw()).collect(),
            home: user.dir,
            name: user.name,
        })
    }

    /// Makes the calling thread, which must be the only one, this user's for ever.
    ///
    /// # Errors
    /// What the system said.
    pub fn become_it(&self) -> rustix::io::Result<()> {
        let groups: Vec<RawGid> = self.groups.iter().map(|gid| RawGid::from_raw(*gid)).collect();
        let (uid, gid) = (RawUid::from_raw(self.uid), RawGid::from_raw(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_name_and_by_number() {
        let root = Account::find("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0));
        assert_eq!(Account::find("0").unwrap(), root);
    }

    #[test]
    fn an_unknown_user_is_one_sentence() {
        let error = Account::find("no such\nuser").unwrap_err();
        assert!(error.starts_with("there is no user"), "{error}");
    }
}
